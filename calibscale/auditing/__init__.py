"""Audits of predictions: groups, segments, ranges and maps of local bias, and their tests."""
