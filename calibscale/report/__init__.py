"""Results as one HTML file: for people, on any screen, with nothing to load."""

from calibscale.report.page import report, save_report

__all__ = ["report", "save_report"]
