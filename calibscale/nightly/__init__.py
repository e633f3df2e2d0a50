"""Nightly jobs: a job file says what is read, kept, judged and written, day after day."""
