"""Ranking of several models by calibration, with its uncertainty."""
