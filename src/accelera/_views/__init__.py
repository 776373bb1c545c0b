"""Numbers behind every picture: verdict, occupancy, policies, curves, ways out, timeline."""

from accelera._views.comparison import (
    USUAL_POLICIES,
    ComparisonView,
    PolicyRow,
    comparison_view,
    known_policies,
    least_per_unit,
    needs_schedule,
)
from accelera._views.curves import CurvesView, curves_view
from accelera._views.facts import MACHINES, JsonView, MeasuredTrace, Units, ViewJson, WhatIf
from accelera._views.fit import FitView, fit_view, verdict_of
from accelera._views.occupancy import OccupancyPeak, OccupancyView, PhaseSpan, RoleSeries, occupancy_view
from accelera._views.presets import CARDS, MODELS, CardPreset, ModelPreset, presets
from accelera._views.scores import ScoreCell, ScoresView, scores_of, scores_view
from accelera._views.timeline import (
    LaneSpan,
    OccupancyOverTime,
    TimedPhase,
    TimelineLane,
    TimelineView,
    timeline_view,
)
from accelera._views.verdict import LoadedAhead, Verdict
from accelera._views.ways import RoomLeft, WayOut, WaysView, ways_view
from accelera._views.wording import policy_label

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
    "MeasuredTrace",
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
    "WhatIf",
    "comparison_view",
    "curves_view",
    "fit_view",
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
