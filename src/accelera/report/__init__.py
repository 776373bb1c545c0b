"""Reports: all pictures of a trace in one HTML file that works offline."""

from accelera.report.contents import report_contents
from accelera.report.page import report_page

__all__ = [
    "report_contents",
    "report_page",
]
