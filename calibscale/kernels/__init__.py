"""Compiled block functions on arrays: serial, and without the GIL."""
