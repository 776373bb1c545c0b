"""The table of a trace with its eviction scores, and what the gate says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelera.extras import require
from accelera.memory import Hierarchy
from accelera.simulator.scorers.gate import gated
from accelera.simulator.scorers.scoring import unit_scores
from accelera.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

UNGATED = (
    "{scorer} was not compared with anything: its evictions may move more bytes than lru's. "
    "Give hierarchy=, for example '8GiB', and the gate says whether to follow it there"
)
"""What the table says of scores that no gate has seen."""


def predict_eviction_scores(
    trace: Trace | pd.DataFrame,
    scorer: str = "replay",
    *,
    hierarchy: Hierarchy | int | float | str | None = None,
    lookahead: int = 0,
    **options: Any,
) -> pd.DataFrame:
    """Return the trace's table with the column ``eviction_score``, from 0 (keep) to 1 (evict first).

    **The scores are the scorer's own and not gated**: whether evicting by them moves fewer bytes than LRU
    depends on the memory. With ``hierarchy`` the gate simulates that, and ``table.attrs["gate"]`` has its
    verdict; without, it says that there is none.

    Events that are no accesses have no score (NaN). ``heuristic`` and ``llm`` are as they are; the times that
    ``replay`` and ``learned`` predict are replaced by their rank, which keeps their order: a simulation with
    these scores evicts what one with the times does.

    Parameters
    ----------
    trace
        A trace, or its table.
    scorer, options
        See ``score``.
    hierarchy, lookahead
        The memory to ask the gate for, as in ``simulate``; see ``gated``.

    Returns
    -------
    pandas.DataFrame
        Its ``attrs["gate"]`` is a dict with ``checked``, ``reason`` (a sentence) and, where checked, the
        fields of ``Gated``: ``accepted``, ``policy`` (the one to run with), bytes moved by each.

    Raises
    ------
    UnknownNameError
        For a scorer or hierarchy that there is not.
    BackendMissingError
        Where a library is absent.

    Examples
    --------
    >>> from accelera.simulator import generate_synthetic_trace
    >>> trace = generate_synthetic_trace(num_layers=1)
    >>> table = predict_eviction_scores(trace, scorer="heuristic")
    >>> bool(table.eviction_score.between(0, 1).sum() == trace.access_count)
    True
    >>> table.attrs["gate"]["checked"]
    False
    """
    require("predict_eviction_scores", "pandas", otherwise="or call score, which returns an array")
    given = trace if isinstance(trace, Trace) else Trace.from_pandas(trace)
    scores = unit_scores(given, scorer, **options)
    table = given.to_pandas(scores=scores)
    if hierarchy is None:
        table.attrs["gate"] = {"checked": False, "reason": UNGATED.format(scorer=scorer)}
    else:
        choice = gated(given, scores, hierarchy, lookahead=lookahead, name=scorer)
        table.attrs["gate"] = {"checked": True, **choice.to_dict()}
    return table
