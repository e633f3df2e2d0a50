"""Ledgers: states of many days, which merge into windows, and what is judged from them."""
