"""Jobs: what is computed each night, as a job file states."""
