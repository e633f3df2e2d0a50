"""Results: one module for the results of each task.

A result is a frozen dataclass whose annotations declare its JSON object; this package imports no
other one than NumPy, so that reading a result loads neither compiler nor storage libraries.
"""
