"""Traces and pandas tables: the columns that are stored, those shown besides, and how cells are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accelera._extras import needed_for
from accelera._json_values import shown
from accelera.errors import ShapeError, TraceFormatError
from accelera.trace.access import ROLES, Kind
from accelera.trace.columns import AN_AMOUNT, BadCell, checked_columns, is_amount
from accelera.trace.reuse import FIRST, stack_distances

if TYPE_CHECKING:
    import pandas as pd


MIB = 1 << 20
"""Bytes in the seed's "MB": memory is counted in powers of two."""

KINDS = tuple(kind.name.lower() for kind in Kind)
"""How kinds are written: ``"read"``, ``"write"`` …, by their numbers."""

STORED = (
    "buffer",
    "kind",
    "step",
    "stride",
    "size_bytes",
    "name",
    "role",
    "dtype",
    "op",
    "flops",
    "seconds",
    "eviction_score",
)
"""The columns from which a trace is built again; all others follow from them."""


def codes_and_values(trace: Any) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
    """Return the text columns of a ``Trace`` as an index per event and the values it points into."""
    kinds = np.array(KINDS, object)
    return {
        "kind": (trace.kind, kinds),
        "name": (trace.buffer, np.array(trace.names, object)),
        "role": (trace.buffer, np.array(trace.roles, object)),
        "dtype": (trace.buffer, np.array(trace.dtypes, object)),
        "op": (trace.step, np.array(trace.ops, object)),
    }


def numbers(trace: Any) -> dict[str, NDArray[Any]]:
    """Return the number columns of a ``Trace``, each of shape (events,)."""
    found = {
        "buffer": trace.buffer,
        "step": trace.step,
        "stride": trace.stride,
        "size_bytes": trace.size_bytes[trace.buffer],
        "flops": trace.flops[trace.step],
        "seconds": trace.seconds[trace.step],
    }
    if trace.scores is not None:
        found["eviction_score"] = per_event(trace, trace.scores)
    return found


def per_event(trace: Any, values: NDArray[Any], missing: float = np.nan) -> NDArray[np.float64]:
    """Spread values per access over all events; the others get ``missing``."""
    found: NDArray[np.float64] = np.full(len(trace), missing)
    found[trace.is_access] = values
    return found


def stored_columns(trace: Any) -> dict[str, NDArray[Any]]:
    """Return the ``STORED`` columns of a ``Trace``, each of shape (events,); texts are objects."""
    texts = {column: values[codes] for column, (codes, values) in codes_and_values(trace).items()}
    found = {**texts, **numbers(trace)}
    return {column: found[column] for column in STORED if column in found}


def idle_steps(trace: Any) -> dict[str, list[Any]]:
    """Return the steps without events, of which no row tells: lists ``step, op, flops, seconds``."""
    busy = np.zeros(trace.step_count, np.bool_)
    busy[trace.step] = True
    idle = np.flatnonzero(~busy)
    return {
        "step": idle.tolist(),
        "op": [trace.ops[step] for step in idle],
        "flops": trace.flops[idle].tolist(),
        "seconds": [None if np.isnan(value) else value for value in trace.seconds[idle].tolist()],
    }


def tensor_ids(names: tuple[str, ...]) -> NDArray[Any]:
    """Return one unique text per buffer: its name, with its number where several share a name."""
    uses = Counter(names)
    unique = [name if uses[name] == 1 else f"{name}#{buffer}" for buffer, name in enumerate(names)]
    return np.array(unique, object)


ORDER = (
    "tensor_id",
    "size_mb",
    "reuse_distance",
    "reuse_distance_bytes",
    "stride",
    "op",
    "model_type",
    "eviction_score",
    "buffer",
    "size_bytes",
    "kind",
    "step",
    "name",
    "role",
    "dtype",
    "flops",
    "seconds",
)
"""The columns as they are shown, the seed's first."""


def frame_of(trace: Any, scores: ArrayLike | None) -> pd.DataFrame:
    """Return the table of a ``Trace``; see ``Trace.to_pandas``."""
    with needed_for("to_pandas"):
        import pandas as pd

    columns: dict[str, Any] = stored_columns(trace)
    columns["tensor_id"] = tensor_ids(trace.names)[trace.buffer]
    columns["size_mb"] = columns["size_bytes"] / MIB
    columns["model_type"] = np.full(len(trace), trace.model_type, object)
    if scores is not None:
        columns["eviction_score"] = per_event(trace, _checked_scores(trace, scores))
    found = stack_distances(trace)
    columns["reuse_distance"] = _where_reused(trace, found.buffers)
    columns["reuse_distance_bytes"] = _where_reused(trace, found.bytes)
    table: pd.DataFrame = pd.DataFrame({column: columns[column] for column in ORDER if column in columns})
    return table


def _where_reused(trace: Any, distances: NDArray[Any]) -> Any:
    """Return distances per event, NA for first uses and for events that are no accesses."""
    import pandas as pd

    values = np.full(len(trace), FIRST, np.int64)
    values[trace.is_access] = distances
    return pd.arrays.IntegerArray(values, values == FIRST)


def _checked_scores(trace: Any, scores: ArrayLike) -> NDArray[np.float64]:
    found = np.asarray(scores, np.float64)
    if found.shape != (trace.access_count,):
        raise ShapeError(f"[trace] scores has shape {found.shape} for {trace.access_count} accesses")
    return found


Label = Callable[[int], str]
Integers = NDArray[np.int64]

_COLUMN_OF = {"sizes_bytes": "size_bytes", "buffer_ids": "buffer", "steps": "step", "kinds": "kind"}


def columns_of_frame(
    frame: pd.DataFrame,
    *,
    source: str = "the table",
    label: Label = "row {}".format,
    called: Mapping[str, str] | None = None,
    idle: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the checked columns of a ``Trace`` from a table; see ``Trace.from_pandas``.

    Parameters
    ----------
    source
        How the table is called in messages.
    label
        How a row is called in messages, from its index.
    called
        How columns are called in messages, where not by their names.
    idle
        The steps without events, which no row tells of: lists ``step, op, flops, seconds``.

    Raises TraceFormatError naming row and column.
    """
    cells = _TableReader(frame, source, label, called or {})
    numbers, steps = cells.buffers(), cells.integers("step")
    buffers = _Owners(numbers, "tensor")
    owners = _Owners(np.arange(len(frame)) if steps is None else steps, "step")
    try:
        columns = checked_columns(
            numbers,
            cells.sizes(),
            event={"kind": cells.kinds(), "step": steps, "stride": cells.integers("stride")},
            buffer={
                "names": cells.texts("name" if "name" in frame else "tensor_id", buffers),
                "roles": cells.roles(buffers),
                "dtypes": cells.texts("dtype", buffers),
            },
            step={"ops": None, "flops": None, "seconds": None},
            idle_steps=0 if idle is None else len(idle["step"]),
        )
    except BadCell as bad:
        raise cells.bad(bad.event, _COLUMN_OF.get(bad.column, bad.column), bad.problem) from None
    except TraceFormatError:
        raise
    except ValueError as error:
        raise TraceFormatError(f"[trace] {source}: {error}") from None
    return {**columns, **_step_columns(cells, owners, len(columns["ops"]), idle), "scores": cells.scores()}


def model_type_of(frame: pd.DataFrame) -> str:
    """Return the ``model_type`` of the first row; ``""`` without rows or column."""
    return str(frame["model_type"].iloc[0]) if "model_type" in frame and len(frame) else ""


def _step_columns(
    cells: _TableReader, owners: _Owners, count: int, idle: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return ``ops``, ``flops`` and ``seconds`` of all steps, those without events too."""
    idle = idle or {"step": [], "op": [], "flops": [], "seconds": []}
    count = max([count, *(step + 1 for step in idle["step"])])
    busy = owners.ids
    ops: NDArray[Any] = np.full(count, "", object)
    flops, seconds = np.zeros(count), np.full(count, np.nan)
    ops[busy] = cells.texts("op", owners) or ""
    flops[busy] = cells.per_owner("flops", owners, 0.0)
    seconds[busy] = cells.per_owner("seconds", owners, np.nan)
    ops[idle["step"]], flops[idle["step"]] = idle["op"], idle["flops"]
    seconds[idle["step"]] = np.array(idle["seconds"], np.float64)
    return {"ops": tuple(ops.tolist()), "flops": flops, "seconds": seconds}


class _Owners:
    """To which tensor or step each row belongs."""

    def __init__(self, ids: Integers, name: str) -> None:
        import pandas as pd

        self.name = name
        codes, _ = pd.factorize(ids)
        self.rows: Integers = np.flatnonzero(np.diff(np.maximum.accumulate(codes), prepend=-1))
        """The row where each comes first, in that order."""
        self.ids: Integers = ids[self.rows]
        self.first_row: Integers = self.rows[codes]
        """Per row, the first one of the same owner."""


class _TableReader:
    """Takes columns out of a table, and blames the cell that cannot be taken."""

    def __init__(self, frame: pd.DataFrame, source: str, label: Label, called: Mapping[str, str]) -> None:
        twice = frame.columns[frame.columns.duplicated()]
        if len(twice):
            raise TraceFormatError(f"[trace] {source} has two columns {shown(twice[0])}; leave one out")
        self._frame = frame
        self._source = source
        self._label = label
        self._called = called

    def bad(self, row: int, column: str, problem: str) -> TraceFormatError:
        if column not in self._frame:
            column = {"size_bytes": "size_mb", "buffer": "tensor_id"}.get(column, column)
        name = self._called.get(column, column)
        return TraceFormatError(f"[trace] {self._label(row)}, column {name}: {problem}")

    def buffers(self) -> Integers:
        given = self.integers("buffer")
        if given is not None:
            return given
        self._require("tensor_id", "which tensor is accessed")
        codes, _ = self._codes("tensor_id")
        empty = (codes < 0) | (self._frame["tensor_id"] == "").to_numpy(np.bool_, na_value=True)
        self._refuse("tensor_id", empty, "a tensor's name")
        return codes

    def sizes(self) -> Integers:
        given = self.integers("size_bytes")
        if given is not None:
            return given
        self._require("size_mb", "how large it is (size_bytes will do, too)")
        mebibytes = self._floats("size_mb", np.nan)
        self._refuse("size_mb", ~((mebibytes >= 0) & (mebibytes < 2.0**43)), "a size from 0 MB")
        return np.rint(mebibytes * MIB).astype(np.int64)

    def kinds(self) -> Integers | None:
        if "kind" not in self._frame:
            return None
        codes, values = self._codes("kind")
        number = {kind: i for i, kind in enumerate(KINDS)}
        found = np.array([number.get(str(value), -1) for value in values] + [-1], np.int64)[codes]
        self._refuse("kind", found < 0, f"one of {', '.join(KINDS)}")
        return found

    def scores(self) -> NDArray[np.float64] | None:
        """Return the scores of the accesses, or None where there are none at all."""
        if "eviction_score" not in self._frame:
            return None
        kinds = self.kinds()
        access = np.ones(len(self._frame), np.bool_) if kinds is None else kinds <= 1
        found = self._floats("eviction_score", np.nan)
        if np.isnan(found[access]).all():
            return None
        bad = access & ~np.isfinite(found)
        self._refuse("eviction_score", bad, "a finite score, which every access has or none")
        return found[access]

    def roles(self, owners: _Owners) -> list[str] | None:
        """Return the role of each owner, or None without the column."""
        if "role" in self._frame:
            codes, values = self._codes("role")
            known = np.array([str(value) in ROLES for value in values] + [True], np.bool_)
            self._refuse("role", ~known[codes], f"one of {', '.join(filter(None, ROLES))}, or empty")
        return self.texts("role", owners)

    def integers(self, column: str) -> Integers | None:
        """Return a column of whole numbers, or None where it is absent."""
        if column not in self._frame:
            return None
        if self._frame[column].dtype.kind in "iu" and not self._frame[column].isna().any():
            given = self._frame[column].to_numpy()
            self._refuse(column, given > np.iinfo(np.int64).max, "a whole number below 2**63")
            return given.astype(np.int64)
        found = self._floats(column, np.nan)
        self._refuse(column, ~(found == np.rint(found)), "a whole number")
        self._refuse(column, ~(np.abs(found) < 2.0**53), "a whole number that is certain, below 2**53")
        return found.astype(np.int64)

    def texts(self, column: str, owners: _Owners) -> list[str] | None:
        """Return one text per owner, or None without the column."""
        if column not in self._frame:
            return None
        codes, values = self._codes(column)
        self._require_one_each(column, codes, owners)
        known = np.array([*map(str, values), ""], object)
        found: list[str] = known[codes[owners.rows]].tolist()
        return found

    def per_owner(self, column: str, owners: _Owners, missing: float) -> NDArray[np.float64]:
        """Return one number per owner; ``missing`` without the column."""
        if column not in self._frame:
            return np.full(len(owners.rows), missing)
        found = self._floats(column, missing)
        self._refuse(column, ~is_amount(found) & ~(np.isnan(found) & np.isnan(missing)), AN_AMOUNT)
        self._require_one_each(column, found, owners)
        return found[owners.rows]

    def _require_one_each(self, column: str, values: NDArray[Any], owners: _Owners) -> None:
        """Refuse a column that has two values for one owner."""
        first = values[owners.first_row]
        bad = np.flatnonzero((values != first) & ~((values != values) & (first != first)))
        if len(bad):
            row = int(bad[0])
            before = self._cell(column, int(owners.first_row[row]))
            raise self.bad(
                row, column, f"{self._cell(column, row)}, but {before} before for the same {owners.name}"
            )

    def _floats(self, column: str, missing: float) -> NDArray[np.float64]:
        """Return a column of numbers; empty cells are ``missing``."""
        given = self._frame[column]
        empty = given.isna().to_numpy()
        found = as_numbers(given).to_numpy(np.float64, na_value=np.nan)
        self._refuse(column, np.isnan(found) & ~empty, "a number")
        return np.where(empty, missing, found)

    def _codes(self, column: str) -> tuple[Integers, Any]:
        """Return an index per row and the values it points into; empty cells are -1."""
        import pandas as pd

        given = self._frame[column]
        try:
            codes, values = pd.factorize(given)
        except TypeError:
            nested = np.array([isinstance(value, (list, dict, np.ndarray)) for value in given])
            self._refuse(column, nested, "a text or a number")
            raise
        return codes.astype(np.int64), values

    def _require(self, column: str, what: str) -> None:
        if column not in self._frame:
            there = shown(", ".join(map(str, self._frame.columns)) or "none")
            raise TraceFormatError(
                f"[trace] {self._source} has no column {column}, which says {what}; columns: {there}"
            )

    def _refuse(self, column: str, bad: NDArray[np.bool_], rule: str) -> None:
        rows = np.flatnonzero(bad)
        if len(rows):
            row = int(rows[0])
            raise self.bad(row, column, f"{self._cell(column, row)} is not {rule}")

    def _cell(self, column: str, row: int) -> str:
        value = self._frame[column].iloc[row]
        return (
            "an empty cell"
            if value is None or value != value
            else shown(getattr(value, "item", lambda: value)(), repr)
        )


def as_numbers(cells: pd.Series[Any]) -> pd.Series[Any]:
    """Return cells as numbers: infinite where one is too large, NaN where it is none."""
    import pandas as pd

    try:
        return pd.to_numeric(cells, errors="coerce")
    except (OverflowError, TypeError):  # thousands of digits, or what is no single value
        return cells.map(_as_float).astype(np.float64)


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf")
    except (TypeError, ValueError):
        return float("nan")
