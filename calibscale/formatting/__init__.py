"""Numbers, names and terms formatted for people."""
