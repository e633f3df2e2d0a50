"""Functions for the methods of results, imported on first use."""

from .exports import notebook_page as notebook_page
from .exports import plot as plot
from .exports import save as save
from .exports import to_frame as to_frame
from .text import as_text as as_text
