"""Inference: calibration tests and their nulls, intervals, verdicts, power and e-processes."""
