"""Data: sources of rows, their validation, the store, and tables."""
