"""Compiled block functions: arrays in, arrays out, serial and without the GIL."""
