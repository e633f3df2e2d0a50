"""Predictions of functionals: means, quantiles, expectiles, events of numbers, and intervals."""
