"""Names of this package for the other packages of Accelera; not part of the public interface."""

from accelera.charts.curves import (
    CURVES_HEIGHT,
    Measure,
    budget_mark,
    curves_chart,
    curves_legend,
)
from accelera.charts.figures import TITLES, Kind
from accelera.charts.heatmap import (
    CIVIDIS,
    HEATMAP_HEIGHT,
    distance_class_of,
    heatmap_chart,
    heatmap_colour,
)
from accelera.charts.occupancy import OCCUPANCY_HEIGHT, occupancy_chart, occupancy_legend
from accelera.charts.policies import bars_height, policy_bars
from accelera.charts.tables import table_bytes, table_of
from accelera.charts.timeline import TIMELINE_HEIGHT, timeline_chart
from accelera.views._internal import policy_label

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
