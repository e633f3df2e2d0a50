"""Mutated inputs: each ends in one of our errors, or in the value that a careful reader gets.

``python -m tests.fuzz --cases 10000`` prints the counts.  ``python -m tests.fuzz csv:17`` repeats
the case with the seed 17 of the target `csv` in this process.
"""
