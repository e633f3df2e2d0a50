"""Results for people: text on a terminal, pictures, and HTML reports."""

import lazy_loader

# Matplotlib and rich are imported with the first function that needs them.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
