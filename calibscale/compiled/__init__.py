"""Loops compiled by Numba, which only this subpackage imports.

The decorators are loaded before any kernel: they explain errors of Numba's environment, and let
forks wait for the end of a compilation.
"""

from calibscale.compiled.jit import full_width, inlined, kernel

__all__ = ["full_width", "inlined", "kernel"]
