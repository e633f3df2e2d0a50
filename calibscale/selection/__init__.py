"""Selection of a calibration estimator: training, validation and testing [GB §3.2.2]."""

from calibscale.kernels.landmarks import Gaussian, Laplacian
from calibscale.selection.cross_validation import select
from calibscale.selection.kernel_features import KernelFeatures
from calibscale.selection.simple_families import Bins, Temperature

__all__ = ["Bins", "Gaussian", "KernelFeatures", "Laplacian", "Temperature", "select"]
