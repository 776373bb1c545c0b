"""Charts of the Copilot's metrics: options of ECharts, and image files by matplotlib."""

from accelera.charts.figures import figure_bytes

__all__ = ["figure_bytes"]
