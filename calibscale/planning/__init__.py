"""Expected costs of a run, and expected times with more workers, from short measurements."""
