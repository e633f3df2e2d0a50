"""Estimators: one file for each family of errors, and the registry of their names."""
