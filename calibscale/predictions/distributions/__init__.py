"""Predictions of other targets than classes: predictive distributions of numbers and of ranks."""
