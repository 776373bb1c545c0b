"""Check of a model in LightGBM's text form, before LightGBM reads it.

LightGBM trusts its model files: a wrong count ends the process, and a wrong index of a child or a feature
reads memory out of bounds. Here every value is checked, and the text is written again from checked values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence

from accelera._json_values import shown
from accelera.errors import ArgumentError

_MOST_LEAVES = 1 << 16
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_PER_NODE = ("split_feature", "split_gain", "threshold", "decision_type", "left_child", "right_child")
_PER_LEAF = ("leaf_value", "leaf_weight", "leaf_count")
_OF_NODES = ("internal_value", "internal_weight", "internal_count")
_REAL = frozenset({"split_gain", "leaf_value", "leaf_weight", "internal_value", "internal_weight"})
_NUMERICAL_DECISIONS = frozenset(range(0, 16, 2))
"""Codes of a comparison with a threshold; odd ones are of categories."""
_FIXED = {"num_class": "1", "num_tree_per_iteration": "1", "label_index": "0"}
_END = "end of trees"


def checked_model_text(text: str, features: Sequence[str]) -> str:
    """Return the regression trees of a model as text that is safe to load.

    Parameters
    ----------
    text
        The model, as LightGBM's ``Booster.model_to_string`` writes it.
    features
        Names of the features that it must use.

    Raises
    ------
    ArgumentError
        For text that is not such a model: a value is absent, out of range or not a number, or the nodes of a
        tree do not form a tree.
    """
    trees_text, mark, _ = text.partition(f"\n{_END}")
    head, *blocks = re.split(r"\nTree=[0-9]+\n", trees_text)
    if not mark or not head.startswith("tree\n"):
        raise _refusal("it", shown(text[:40], repr), f"a text from 'tree' to {_END!r}")
    header = _entries(head)
    for name, value in _FIXED.items():
        _require(header.get(name) == value, name, header.get(name), value)
    names = header.get("feature_names", "").split(" ")
    if names != list(features):
        raise ArgumentError(
            f"[scorer] the model looks at {shown(', '.join(names))}, and here are {', '.join(features)}; "
            "train it again with train_scorer"
        )
    objective = header.get("objective")
    _require(objective == "regression", "objective", objective, "regression")
    version = header.get("version", "")
    _require(re.fullmatch(r"v[0-9]", version) is not None, "version", version, "v3, v4 …")
    trees = [_tree(_entries(block), number, len(features)) for number, block in enumerate(blocks)]
    return _written(version, features, trees)


def _written(version: str, features: Sequence[str], trees: Sequence[str]) -> str:
    lines = [
        "tree",
        f"version={version}",
        *(f"{name}={value}" for name, value in _FIXED.items()),
        f"max_feature_idx={len(features) - 1}",
        "objective=regression",
        f"feature_names={' '.join(features)}",
        f"feature_infos={' '.join(['none'] * len(features))}",
        f"tree_sizes={' '.join(str(len(tree)) for tree in trees)}",
    ]
    return "\n".join([*lines, "", "".join(trees) + _END, "", ""])


def _entries(block: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in block.splitlines() if "=" in line)
    return {name: value for name, _, value in pairs}


def _tree(entries: Mapping[str, str], number: int, features: int) -> str:
    """Return the text of one tree; raises ArgumentError for values that are none of a tree."""
    (leaves,) = _whole_numbers(entries, "num_leaves", 1, 1, _MOST_LEAVES)
    for name in ("num_cat", "is_linear"):
        _require(entries.get(name, "0") == "0", name, entries.get(name), "0")
    nodes = leaves - 1
    _whole_numbers(entries, "split_feature", nodes, 0, features - 1)
    decisions = _whole_numbers(entries, "decision_type", nodes, 0, 15)
    _require(_NUMERICAL_DECISIONS.issuperset(decisions), "decision_type", decisions, "even numbers")
    _check_children(entries, leaves)
    lines = [f"Tree={number}", f"num_leaves={leaves}", "num_cat=0"]
    for names, count in ((_PER_NODE, nodes), (_PER_LEAF, leaves), (_OF_NODES, nodes)):
        lines += [f"{name}={_column(entries, name, count)}" for name in names]
    (shrinkage,) = _finite_numbers(entries, "shrinkage", 1)
    return "\n".join([*lines, "is_linear=0", f"shrinkage={shrinkage}", "", "", ""])


def _check_children(entries: Mapping[str, str], leaves: int) -> None:
    """Raise ArgumentError unless each leaf, and each node but the first, is the child of one earlier node."""
    nodes = leaves - 1
    sides = [_whole_numbers(entries, f"{side}_child", nodes, -leaves, leaves) for side in ("left", "right")]
    children = [child for side in sides for child in side]
    expected = [*range(-leaves, 0), *range(1, nodes)] if nodes else []
    follows = all(child < 0 or child > node for side in sides for node, child in enumerate(side))
    _require(follows and sorted(children) == expected, "child nodes", children, "each node and leaf once")


def _column(entries: Mapping[str, str], name: str, count: int) -> str:
    """Return ``count`` numbers as text; the column of a single leaf may be empty, as LightGBM writes it."""
    if not entries.get(name) and count <= 1 and name != "leaf_value":
        return ""
    if name == "threshold":
        return " ".join(_words(entries, name, count, _is_threshold))
    return " ".join((_finite_numbers if name in _REAL else _any_whole_numbers)(entries, name, count))


def _any_whole_numbers(entries: Mapping[str, str], name: str, count: int) -> list[str]:
    return [str(each) for each in _whole_numbers(entries, name, count, -(2**31), 2**31 - 1)]


def _whole_numbers(entries: Mapping[str, str], name: str, count: int, low: int, high: int) -> list[int]:
    words = _words(entries, name, count, lambda word: _INTEGER.fullmatch(word) is not None)
    numbers = [int(word) for word in words]
    _require(all(low <= each <= high for each in numbers), name, numbers, f"numbers from {low} to {high}")
    return numbers


def _finite_numbers(entries: Mapping[str, str], name: str, count: int) -> list[str]:
    return _words(entries, name, count, _is_finite)


def _is_finite(word: str) -> bool:
    try:
        return word.isascii() and "_" not in word and math.isfinite(float(word))
    except ValueError:
        return False


def _is_threshold(word: str) -> bool:
    """Return whether a word is a number; LightGBM writes ``inf`` where all finite values are on one side."""
    return word in ("inf", "-inf") or _is_finite(word)


def _words(entries: Mapping[str, str], name: str, count: int, is_valid: Callable[[str], bool]) -> list[str]:
    words = entries.get(name, "").split()
    _require(len(words) == count and all(map(is_valid, words)), name, entries.get(name), f"{count} numbers")
    return words


def _require(condition: bool, name: str, value: object, expected: str) -> None:
    if not condition:
        raise _refusal(name, shown(value, repr), expected)


def _refusal(name: str, value: str, expected: str) -> ArgumentError:
    return ArgumentError(
        f"[scorer] the model is damaged: {name} is {value}, expected {expected}; "
        "pass what train_scorer returned"
    )
