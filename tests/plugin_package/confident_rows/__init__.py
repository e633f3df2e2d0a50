"""An estimator with a statistic, a null, and a reader, which entry points name."""
