"""Results: one module for the results of each task.

A result is a frozen dataclass with annotations that declare its JSON object.  This package imports
no package but NumPy, so that reading a result loads neither compiler nor storage libraries.
"""
