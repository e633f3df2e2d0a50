"""Helpers that several test modules use."""

from pathlib import Path

ROOT = Path(__file__).parents[2]  # of the repository
