"""Nightly jobs: reading, storing and judging the predictions of each day, as a job file states."""
