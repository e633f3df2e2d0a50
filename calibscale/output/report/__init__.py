"""Reports of results as self-contained HTML files."""

from calibscale.output.report.page import report, save_report

__all__ = ["report", "save_report"]
