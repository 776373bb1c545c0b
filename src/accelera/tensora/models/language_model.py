"""Base of language models: loss, sampling, and weights from folders in Hugging Face's layout."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

from accelera._json_values import is_finite_number, parse_json, shown
from accelera.errors import ArgumentError, MissingFileError, ShapeError
from accelera.tensora import dtypes, sort_search
from accelera.tensora import functional as F  # noqa: N812
from accelera.tensora.autograd import no_grad
from accelera.tensora.core import DType, Tensor, native
from accelera.tensora.inspection import placed
from accelera.tensora.nn.grouped_attention import KeyValueCache
from accelera.tensora.nn.module import Module
from accelera.tensora.random import Generator, default_generator
from accelera.tensora.serialization.files import TensorFile, misfits
from accelera.tensora.serialization.memory import fill, first_names
from accelera.tensora.typing import Device, DTypeLike

__all__ = ["CausalLanguageModel", "CausalLanguageModelConfig", "activation"]

_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, "tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, "tanh"),
    "relu": F.relu,
    "sigmoid": F.sigmoid,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": F.tanh,
}


def activation(name: str) -> Callable[[Any], Any]:
    """Activation by the name that configurations have for it."""
    if name not in _FUNCTIONS:
        raise ArgumentError(f"[activation] {name!r}; known are {', '.join(_FUNCTIONS)}")
    return _FUNCTIONS[name]


_LARGEST_COUNT = 2**31 - 1


def _is_count(value: Any) -> bool:
    return type(value) is int and 1 <= value <= _LARGEST_COUNT


_COUNT = f"an integer from 1 to {_LARGEST_COUNT:,}"
_FIELD_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (_is_count, _COUNT),
    "int | None": (lambda value: value is None or _is_count(value), f"{_COUNT}, or None"),
    "float": (is_finite_number, "a finite number"),
    "bool": (lambda value: isinstance(value, bool), "true or false"),
    "str": (lambda value: isinstance(value, str), "a string"),
    "Mapping[str, Any] | None": (lambda value: value is None or isinstance(value, Mapping), "an object"),
}
"""Condition of a field's value, and its description, by the annotation of the field."""


class CausalLanguageModelConfig(ABC):
    """Base of the configurations, which are frozen dataclasses with the names of ``config.json``.

    Raises ArgumentError for a field of the wrong type, a count below 1 and a number that is not finite.
    """

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            is_valid, expected = _FIELD_RULES[str(field.type)]
            value = getattr(self, field.name)
            if not is_valid(value):
                raise ArgumentError(
                    f"[{type(self).__name__}] {field.name} is {shown(value, repr)}, expected {expected}; "
                    "correct the configuration"
                )

    @abstractmethod
    def matrix_elements(self) -> int:
        """Return the number of elements of all weight matrices; scales and biases are not counted."""

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Any:
        """Configuration from the entries of a ``config.json``, of which those of no meaning here are left.

        Raises ArgumentError if `config` is not a mapping, or a value is not possible.
        """
        if not isinstance(config, Mapping):
            raise ArgumentError(
                f"[{cls.__name__}] the configuration is a {type(config).__name__}; give a JSON object"
            )
        known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
        return cls(**{key: value for key, value in config.items() if key in known})


class CausalLanguageModel(Module, ABC):
    """Model that predicts the next token of each position.

    A subclass has `lm_head` and computes hidden states in `_hidden`.
    """

    config_class: ClassVar[Any]
    prefix: ClassVar[str]
    """First part of the names of all weights but those of `lm_head`; some files leave it out."""
    unused: ClassVar[tuple[str, ...]] = ()
    """Endings of names in files that hold no weights."""
    config: Any
    lm_head: Any

    @abstractmethod
    def _hidden(
        self, input_ids: Tensor, attention_mask: Tensor | None, caches: list[KeyValueCache] | None
    ) -> Any:
        """Hidden states (batch, length, width) before `lm_head`."""

    @property
    @abstractmethod
    def max_length(self) -> int:
        """Longest sequence that the model takes."""

    @property
    @abstractmethod
    def num_layers(self) -> int:
        """Number of layers, each with keys and values of its own."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, targets: Tensor | None = None
    ) -> Any:
        """Logits of the next token at each position, and their loss if targets are given.

        Parameters
        ----------
        input_ids
            Integers of shape (batch, length): numbers of tokens.
        attention_mask
            Of that shape; 0 where a token is padding, which is not attended to. Positions count all tokens.
        targets
            Of that shape: the token that follows at each position, or -100 where none is asked for.

        Returns
        -------
        Tensor or tuple
            Logits of shape (batch, length, vocab_size); with targets, these and the mean cross-entropy.

        Raises
        ------
        ValueError
            If shapes do not fit, or the length is beyond the model's.

        """
        self._check_ids(input_ids, 0)
        logits = self.lm_head(self._hidden(input_ids, self._padding(input_ids, attention_mask), None))
        if targets is None:
            return logits
        if tuple(targets.shape) != tuple(input_ids.shape):
            raise ShapeError(
                f"[{type(self).__name__}] targets of shape {tuple(targets.shape)} for ids of shape "
                f"{tuple(input_ids.shape)}; give the next token of each position"
            )
        flat = native.reshape(logits, (-1, logits.shape[-1]))
        return logits, F.cross_entropy(flat, native.reshape(targets, (-1,)))

    def _check_ids(self, ids: Tensor, more: int) -> None:
        if ids.ndim != 2 or ids.shape[1] == 0:
            raise ShapeError(f"[{type(self).__name__}] ids of shape {tuple(ids.shape)}; give (batch, length)")
        if ids.shape[1] + more > self.max_length:
            raise ShapeError(
                f"[{type(self).__name__}] {ids.shape[1] + more} positions; the model knows {self.max_length}"
            )

    def _padding(self, ids: Tensor, attention_mask: Tensor | None) -> Tensor | None:
        """True where a token is padding."""
        if attention_mask is None:
            return None
        if tuple(attention_mask.shape) != tuple(ids.shape):
            raise ShapeError(
                f"[{type(self).__name__}] an attention_mask of shape {tuple(attention_mask.shape)} for ids "
                f"of shape {tuple(ids.shape)}; give it the same"
            )
        return native.equal(native.cast(attention_mask, dtypes.int64), 0)

    def generate(
        self,
        ids: Tensor,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """Texts with tokens added, each drawn from the distribution that the model predicts.

        Keys and values of the tokens before are kept, so that each step computes one position. Dropout is
        off meanwhile.

        Parameters
        ----------
        ids
            Integers of shape (batch, length), without padding.
        max_new_tokens
            How many tokens are added.
        temperature
            Divisor of the logits: below 1 likely tokens become likelier; 0 always takes the likeliest.
        top_k
            Draw from that many of the likeliest tokens alone.
        generator
            Source of random numbers; the default one if None.

        Returns
        -------
        Tensor
            Of shape (batch, length + max_new_tokens).

        Raises
        ------
        ValueError
            If the sequence is longer than the model takes, or the temperature is negative.

        """
        if temperature < 0 or max_new_tokens < 0 or (top_k is not None and top_k < 1):
            raise ArgumentError(
                f"[generate] max_new_tokens={max_new_tokens}, temperature={temperature}, top_k={top_k}; "
                "give 0 or more, 0 or more, and 1 or more"
            )
        self._check_ids(ids, max_new_tokens)
        was_training = self.training
        self.eval()
        try:
            with no_grad():
                return self._extended(ids, max_new_tokens, _sampler(temperature, top_k, generator))
        finally:
            self.train(was_training)

    def _extended(self, ids: Tensor, count: int, sample: Callable[[Any], Any]) -> Tensor:
        caches = [KeyValueCache() for _ in range(self.num_layers)]
        texts, new = [ids], ids
        for _ in range(count):
            hidden = self._hidden(new, None, caches)
            new = native.cast(sample(self.lm_head(hidden[:, -1]))[:, None], ids.dtype)
            texts.append(new)
        return native.concat(texts, 1)

    @classmethod
    def from_pretrained(
        cls, folder: str | os.PathLike[str], *, device: Device | None = None, dtype: DTypeLike | None = None
    ) -> Any:
        """Model with the weights of a folder, in evaluation mode.

        Parameters
        ----------
        folder
            With ``config.json`` and ``model.safetensors``, or the parts of one and
            ``model.safetensors.index.json``. Weights are read one at a time.
        device, dtype
            Of the weights; the type of the file's by default.

        Raises
        ------
        FileNotFoundError
            If there are no such files.
        ValueError
            If they do not fit the model.

        """
        place = Path(folder)
        files = _weight_files(place)
        config = cls.config_class.from_dict(_document(place / "config.json"))
        _check_size(place, config, files)
        kind = _floating_type(files[0]) if dtype is None else dtypes.as_dtype(dtype)
        made: Any = cls
        model = made(config, device=device, dtype=kind)
        model._load(place, files)
        return model.eval()

    def _load(self, place: Path, files: list[TensorFile]) -> None:
        state = self.state_dict()
        # A tensor with several names is in a file once, under any of them.
        first_name_of = first_names(state)
        missing = set(first_name_of.values())
        for file in files:
            names = {self._own_name(name): name for name in file.entries if not name.endswith(self.unused)}
            unknown = [theirs for ours, theirs in names.items() if ours not in state]
            tensors = {ours: file.tensor(theirs) for ours, theirs in names.items() if ours in state}
            faults = [f"the model has no {each!r}" for each in unknown] + misfits(state, tensors)
            if faults:
                raise ArgumentError(f"[from_pretrained] {file.path}: {'; '.join(faults[:10])}")
            for name, tensor in tensors.items():
                fill(state[name], tensor)
            missing.difference_update(first_name_of[ours] for ours in tensors)
        if missing:
            raise ArgumentError(f"[from_pretrained] {place} lacks {', '.join(sorted(missing)[:10])}")

    def _own_name(self, name: str) -> str:
        has_prefix = name.startswith((self.prefix, "lm_head."))
        return name if has_prefix else self.prefix + name


def _sampler(temperature: float, top_k: int | None, generator: Generator | None) -> Callable[[Any], Any]:
    """Function that draws a token for each row of logits."""
    source = default_generator if generator is None else generator

    def sample(logits: Tensor) -> Tensor:
        logits = native.cast(logits, dtypes.float64)
        if temperature == 0:
            return native.argmax(logits, 1, False)
        if top_k is not None and top_k < logits.shape[1]:
            least = sort_search.topk(logits, top_k, axis=1)[0][:, -1:]
            low = placed(native.asarray(-float("inf"), dtypes.float64), logits.device)
            logits = native.where(native.less(logits, least), low, logits)
        uniform = placed(source.uniform(tuple(logits.shape), dtypes.float64), logits.device)
        noise = -native.log(-native.log(native.clip(uniform, 1e-300, 1.0 - 2.0**-53)))
        return native.argmax(logits / temperature + noise, 1, False)

    return sample


def _weight_files(folder: Path) -> list[TensorFile]:
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    for needed in (folder / "config.json", index if not whole.is_file() else whole):
        if not needed.is_file():
            raise MissingFileError(
                f"[from_pretrained] {needed} is missing; give a folder with config.json and model.safetensors"
                " or its index"
            )
    if whole.is_file():
        return [TensorFile(whole)]
    return [TensorFile(folder / name) for name in _indexed_names(index)]


def _indexed_names(index: Path) -> list[str]:
    """Return the names of the files that an index lists, which must be in its folder."""
    document = _document(index)
    by_tensor = document.get("weight_map") if isinstance(document, dict) else None
    names = [*by_tensor.values()] if isinstance(by_tensor, dict) else []
    outside = [name for name in names if not isinstance(name, str) or Path(name).name != name]
    if not names or outside:
        named = shown(outside[0], repr) if outside else "no files"
        raise ArgumentError(
            f"[from_pretrained] {index} names {named}; its weight_map must name files of its folder"
        )
    return sorted(set(names))


_SMALL_ELEMENTS = 1 << 24
"""Up to this number of missing elements, the model is built and the error names the missing tensors."""


def _check_size(folder: Path, config: CausalLanguageModelConfig, files: list[TensorFile]) -> None:
    """Raise ArgumentError before memory is allocated for a model of which the files lack elements."""
    stored = sum(math.prod(entry.shape) for file in files for entry in file.entries.values())
    described = config.matrix_elements()
    if described > stored + _SMALL_ELEMENTS:
        raise ArgumentError(
            f"[from_pretrained] {folder / 'config.json'} describes a model of at least {described:,} "
            f"elements, the files have {stored:,}; get the configuration that belongs to the weights"
        )


def _document(path: Path) -> Any:
    try:
        return parse_json(path.read_bytes())
    except ArgumentError as error:
        raise ArgumentError(
            f"[from_pretrained] {path} cannot be read: {error}; get the file again"
        ) from error


def _floating_type(file: TensorFile) -> DType:
    kinds = {file.tensor(name).dtype for name in file.entries}
    floating = [kind for kind in kinds if kind in dtypes.KINDS["real floating"]]
    return max(floating, key=native.itemsize, default=native.default_float())
