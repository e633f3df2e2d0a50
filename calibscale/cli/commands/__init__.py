"""Commands, each in the file of its name, which is imported when the command runs."""
