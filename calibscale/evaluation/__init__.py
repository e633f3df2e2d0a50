"""Evaluation of many estimators in one pass, and reliability diagrams."""
