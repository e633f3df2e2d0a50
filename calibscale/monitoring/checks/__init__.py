"""Checks of a night, one file for each: it has one result and one section of the report."""
