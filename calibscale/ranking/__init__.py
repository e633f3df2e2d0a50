"""Rankings of several models, and their agreement with rankings of subsets of the rows."""
