"""The map of local calibration bias."""

from calibscale.bias.map import BiasMap, local_bias

__all__ = ["BiasMap", "local_bias"]
