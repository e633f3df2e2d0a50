"""An estimator with a statistic, and further parts, which entry points name."""
