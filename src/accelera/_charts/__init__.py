"""Charts of the views: options of ECharts, files by matplotlib, tables of the numbers."""

from accelera._charts.curves import (
    CURVES_HEIGHT,
    Measure,
    budget_mark,
    curves_chart,
    curves_legend,
)
from accelera._charts.figures import TITLES, Kind, figure_bytes
from accelera._charts.heatmap import (
    CIVIDIS,
    HEATMAP_HEIGHT,
    distance_class_of,
    heatmap_chart,
    heatmap_colour,
)
from accelera._charts.occupancy import OCCUPANCY_HEIGHT, occupancy_chart, occupancy_legend
from accelera._charts.policies import bars_height, policy_bars
from accelera._charts.tables import table_bytes, table_of
from accelera._charts.timeline import TIMELINE_HEIGHT, timeline_chart
from accelera._views import policy_label

__all__ = [
    "CIVIDIS",
    "CURVES_HEIGHT",
    "HEATMAP_HEIGHT",
    "OCCUPANCY_HEIGHT",
    "TIMELINE_HEIGHT",
    "TITLES",
    "Kind",
    "Measure",
    "bars_height",
    "budget_mark",
    "curves_chart",
    "curves_legend",
    "distance_class_of",
    "figure_bytes",
    "heatmap_chart",
    "heatmap_colour",
    "occupancy_chart",
    "occupancy_legend",
    "policy_bars",
    "policy_label",
    "table_bytes",
    "table_of",
    "timeline_chart",
]
