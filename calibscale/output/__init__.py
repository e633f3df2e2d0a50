"""Results for people: text on a terminal, pictures, and HTML reports."""
