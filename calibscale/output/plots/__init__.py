"""Plots of results, as in reports and pictures.

Every function draws on the matplotlib axes `ax`, by default the axes of a new figure, and returns
them.  Diagrams of several parts divide the axes.
"""

import lazy_loader

# A table of estimates names the plots of some of them, and a command draws few or none.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
