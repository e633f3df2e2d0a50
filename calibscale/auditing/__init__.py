"""Audits: local calibration tests, biased groups, bias maps, and the effect of recalibration."""
