"""Selection of a calibration estimator by its risk [GB]."""

from calibscale.kernel_sums.landmarks import Gaussian, Laplacian
from calibscale.selection.selection_pipeline import KernelFeatures
from calibscale.selection.simple_families import Bins, Temperature

__all__ = ["Bins", "Gaussian", "KernelFeatures", "Laplacian", "Temperature"]
