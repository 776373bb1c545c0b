"""Check of a model's configuration from a caller: of a bounded size, and nothing that loads or runs code.

A configuration of ``transformers`` is plain JSON, but some of its fields name code, kernels or weights that a
library would fetch. What only says where a model came from is left out; what names another model is refused.
Numbers are bounded, as a model of a million layers would be built layer by layer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from accelera._json_values import is_finite_number, shown
from accelera.errors import ArgumentError

CONFIG_BYTES = 65_536
"""Of a configuration as JSON."""
MOST_NUMBER = 1 << 24
MOST_LAYERS = 512
MOST_EXPERTS = 32_768
"""Over all layers."""
MOST_LABELS = 100_000
MOST_DEPTH = 8
"""Of objects in objects."""
_LEFT_OUT = frozenset(
    {
        "auto_map",
        "custom_pipelines",
        "name_or_path",
        "_name_or_path",
        "attn_implementation",
        "_attn_implementation",
        "_attn_implementation_internal",
        "_attn_implementation_autoset",
        "experts_implementation",
        "_experts_implementation",
        "_experts_implementation_internal",
        "quantization_config",
    }
)
_REFUSED = frozenset(
    {"backbone", "backbone_kwargs", "use_pretrained_backbone", "use_timm_backbone", "timm_model"}
)
_LAYER_WORDS = ("layer", "depth", "block", "stage")
_COUNT = re.compile(r"^(num|n)_|_(size|dim|layers|heads)$|^d_model$")
"""Names of fields that count something; others, such as ids of tokens, may be negative."""
_TYPE = "model_type"


def checked_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration without what could load or run anything; raises ValueError for a refusal."""
    if not isinstance(config.get(_TYPE), str) or not config[_TYPE]:
        raise ArgumentError(f"it has no {_TYPE}; give the contents of a model's config.json")
    try:
        size = len(json.dumps(config))
    except RecursionError as error:
        raise ArgumentError(f"it is nested more than {MOST_DEPTH} levels deep") from error
    if size > CONFIG_BYTES:
        raise ArgumentError(
            f"it has {size:,} bytes of at most {CONFIG_BYTES:,}; leave out the names of labels"
        )
    cleaned: dict[str, Any] = _without_code_fields(config, MOST_DEPTH)
    _check_numbers(cleaned)
    return cleaned


ModelConfig = Annotated[
    dict[str, Any],
    AfterValidator(checked_config),
    Field(
        description="the contents of a model's config.json, as transformers reads it: its model_type and its "
        "sizes; no weights are loaded, and no code of the model's own is run",
        json_schema_extra={"required": [_TYPE], "properties": {_TYPE: {"type": "string", "minLength": 1}}},
    ),
]


def _without_code_fields(value: Any, depth: int) -> Any:
    """Return a JSON value without the fields of ``_LEFT_OUT``; raises ValueError for any of ``_REFUSED``."""
    if depth < 0:
        raise ArgumentError(f"it is nested more than {MOST_DEPTH} levels deep")
    if isinstance(value, list):
        return [_without_code_fields(each, depth - 1) for each in value]
    if not isinstance(value, dict):
        return value
    for name in _REFUSED & value.keys():
        if value[name]:
            raise ArgumentError(
                f"{name} names another model, and none is fetched; give the whole configuration"
            )
    return {
        name: _without_code_fields(each, depth - 1) for name, each in value.items() if name not in _LEFT_OUT
    }


def _check_numbers(config: dict[str, Any]) -> None:
    layers = experts = 1
    for name, number in _numbers(config):
        limit = _largest_number(name)
        if number < 0 and _COUNT.search(name):
            raise ArgumentError(
                f"{name}={_written(number)} is negative; give the size that the model has, 1 or more"
            )
        if not abs(number) <= limit:
            raise ArgumentError(f"{name}={_written(number)} of at most {limit:,}")
        if limit == MOST_LAYERS:
            layers = max(layers, int(number))
        elif "expert" in name:
            experts = max(experts, int(number))
    if layers * experts > max(MOST_EXPERTS, layers):
        raise ArgumentError(f"{experts:,} experts in {layers:,} layers; {MOST_EXPERTS:,} in all is the most")


def _largest_number(name: str) -> int:
    if name == "num_labels":
        return MOST_LABELS
    return MOST_LAYERS if any(word in name for word in _LAYER_WORDS) else MOST_NUMBER


def _written(number: int | float) -> str:
    return f"{number:g}" if is_finite_number(number) else shown(number)


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, int | float]]:
    """Yield all numbers with the names of their fields; lists take that of the list."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _numbers(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from _numbers(each, name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name.lower(), value
