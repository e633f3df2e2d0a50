"""Statistics: sums over rows that merge, and the one pass that computes them."""
