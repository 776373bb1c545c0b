"""Names of this package for the other packages of Accelera; not part of the public interface."""

from accelera.views.comparison import (
    USUAL_POLICIES,
    ComparisonView,
    PolicyRow,
    comparison_view,
    known_policies,
    least_per_unit,
    needs_schedule,
)
from accelera.views.curves import CurvesView, curves_view
from accelera.views.facts import MACHINES, JsonView, Units, ViewJson
from accelera.views.fit import FitView, verdict_of
from accelera.views.occupancy import OccupancyPeak, OccupancyView, PhaseSpan, RoleSeries, occupancy_view
from accelera.views.presets import CARDS, MODELS, CardPreset, ModelPreset, presets
from accelera.views.scores import ScoreCell, ScoresView, scores_of, scores_view
from accelera.views.timeline import (
    LaneSpan,
    OccupancyOverTime,
    TimedPhase,
    TimelineLane,
    TimelineView,
    timeline_view,
)
from accelera.views.verdict import LoadedAhead, Verdict
from accelera.views.ways import RoomLeft, WayOut, WaysView, ways_view
from accelera.views.wording import policy_label

__all__ = [
    "CARDS",
    "MACHINES",
    "MODELS",
    "USUAL_POLICIES",
    "CardPreset",
    "ComparisonView",
    "CurvesView",
    "FitView",
    "JsonView",
    "LaneSpan",
    "LoadedAhead",
    "ModelPreset",
    "OccupancyOverTime",
    "OccupancyPeak",
    "OccupancyView",
    "PhaseSpan",
    "PolicyRow",
    "RoleSeries",
    "RoomLeft",
    "ScoreCell",
    "ScoresView",
    "TimedPhase",
    "TimelineLane",
    "TimelineView",
    "Units",
    "Verdict",
    "ViewJson",
    "WayOut",
    "WaysView",
    "comparison_view",
    "curves_view",
    "known_policies",
    "least_per_unit",
    "needs_schedule",
    "occupancy_view",
    "policy_label",
    "presets",
    "scores_of",
    "scores_view",
    "timeline_view",
    "verdict_of",
    "ways_view",
]
