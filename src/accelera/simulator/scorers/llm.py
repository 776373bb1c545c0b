"""Scorer by a language model: the seed's Mistral-7B in 4 bits, from a folder of this machine.

Slow by nature, so it is asked once per trace, about at most 50 tensors, never during a run. It is there
because the seed names it; the scorers that are measured to help are ``replay`` and ``learned``.
"""

from __future__ import annotations

import re
import time
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from accelera import settings
from accelera._extras import needed_for
from accelera._json_values import parse_json
from accelera.errors import ArgumentError, ScorerError
from accelera.policy._internal import heuristic_scores
from accelera.trace import Trace
from accelera.trace._internal import content_hash, stack_distances

MOST_TENSORS = 50
"""How many tensors are put into one prompt at most."""

_QUESTION = """You manage a small, fast memory for a neural network. When it is full, one tensor must leave.
Tensors, one per line: number, role, size in MiB, uses, mean reuse distance (other tensors in between), op.
{lines}
Rank all of them. First the one to evict first: large, and not used again soon. Last the one to keep longest.
Answer with a JSON list of the numbers and nothing else.
"""


def chosen_tensors(trace: Trace) -> NDArray[np.int64]:
    """Return the buffers worth asking about, at most ``MOST_TENSORS``: those with the most bytes accessed."""
    accessed = np.bincount(trace.accessed, minlength=trace.buffer_count) * trace.size_bytes
    return np.argsort(-accessed, kind="stable")[:MOST_TENSORS]


def prompt_for(trace: Trace, tensors: NDArray[np.int64]) -> str:
    """Return the question about ``tensors``."""
    uses = np.bincount(trace.accessed, minlength=trace.buffer_count)
    distance = stack_distances(trace).buffers
    again = distance >= 0
    total = np.bincount(trace.accessed[again], weights=distance[again], minlength=trace.buffer_count)
    mean = total / np.maximum(uses - 1, 1)
    steps = trace.step[trace.is_access]
    first = np.zeros(trace.buffer_count, dtype=np.int64)
    first[trace.accessed[::-1]] = steps[::-1]
    lines = [
        f"{number}, {trace.roles[each] or 'tensor'}, {trace.size_bytes[each] / 2**20:.2f}, "
        f"{uses[each]}, {mean[each]:.1f}, {trace.ops[first[each]] or 'op'}"
        for number, each in enumerate(tensors.tolist())
    ]
    return _QUESTION.format(lines="\n".join(lines))


def parsed_ranking(answer: str, count: int) -> list[int]:
    """Return the numbers of the first JSON list in ``answer``, a permutation of ``range(count)``.

    Raises ScorerError that quotes the answer when it holds no such list.
    """
    found = re.search(r"\[[\s\d,]*\]", answer)
    try:
        ranking: list[int] = parse_json(found.group()) if found else []
    except ArgumentError:
        ranking = []
    if sorted(ranking) != list(range(count)):
        raise ScorerError(
            f"[scorer] the language model was asked to rank {count} tensors and answered {answer[:200]!r}, "
            f"which is no JSON list of the numbers 0 to {count - 1}; take another model or scorer='replay'"
        )
    return ranking


SPACES = "▁Ġ"
"""What tokenizers write for a leading space."""
_LED = "▁"
"""The character before, where that is a space in front of the list: one is enough for any model."""


class Ranking(NamedTuple):
    """A list as far as it is written."""

    unused: frozenset[str]
    """Numbers that are still to come."""
    number: str = ""
    """Digits of the number being written."""
    last: str = ""
    """The character before; empty at the start."""

    def then(self, text: str) -> Ranking | None:
        """Return the list after ``text``, or None where no valid list begins so."""
        state: Ranking | None = self
        for character in text:
            state = state._after(character) if state is not None else None
        return state

    @property
    def complete(self) -> bool:
        """Whether the list is closed."""
        return self.last == "]"

    def _after(self, character: str) -> Ranking | None:
        if character == " ":
            after = {",": " ", "": _LED}.get(self.last)
            return None if after is None else self._replace(last=after)
        if character == "[":
            return self._replace(last="[") if self.last in ("", _LED) else None
        if character.isdigit():
            return self._digit(character)
        if self.number not in self.unused:
            return None
        left = self.unused - {self.number}
        if (character == "," and left) or (character == "]" and not left):
            return Ranking(left, "", character)
        return None

    def _digit(self, character: str) -> Ranking | None:
        number = self.number + character
        begun = self.last not in ("", _LED) and not self.complete
        possible = begun and any(each.startswith(number) for each in self.unused)
        return self._replace(number=number, last=character) if possible else None


class Grammar:
    """Which tokens may come next; given to ``generate`` as ``prefix_allowed_tokens_fn``."""

    def __init__(self, tokenizer: Any, count: int, prompt_length: int) -> None:
        self._start = Ranking(frozenset(map(str, range(count))))
        self._prompt_length = prompt_length
        self._end = [tokenizer.eos_token_id]
        self._pieces = {
            index: piece
            for piece, index in _pieces(tokenizer).items()
            if piece and set(piece) <= set("0123456789,[] ")
        }

    def __call__(self, _batch: int, tokens: Any) -> list[int]:
        """Return the tokens that may follow ``tokens``, the prompt included."""
        state = self.state(tokens[self._prompt_length :].tolist())
        if state is None or state.complete:
            return self._end
        return [index for index, piece in self._pieces.items() if state.then(piece) is not None] or self._end

    def state(self, written: list[int]) -> Ranking | None:
        """Return the list after the tokens ``written``."""
        return self._start.then("".join(self._pieces.get(index, "") for index in written))

    def text(self, written: list[int]) -> str:
        """Return the tokens ``written`` as text."""
        return "".join(self._pieces.get(index, "") for index in written)


def _pieces(tokenizer: Any) -> dict[str, int]:
    spaces = str.maketrans(dict.fromkeys(SPACES, " "))
    return {piece.translate(spaces): index for piece, index in tokenizer.get_vocab().items()}


TIMEOUT_S = 120.0
_TOKENS_PER_TENSOR = 6
_REMEMBERED = 32
_rankings: dict[tuple[str, str, bool], NDArray[np.float64]] = {}


def llm_scores(
    trace: Trace,
    path: str | Path | None = None,
    *,
    four_bit: bool = True,
    timeout: float = TIMEOUT_S,
) -> NDArray[np.float64]:
    """Return a score per access in 0..1, shape (accesses,).

    The model ranks the tensors with the most bytes accessed, 50 at most; the rank is their score. It may
    write nothing but a ranking. The other tensors get the ``heuristic`` score. The result is remembered by
    the trace's content.

    Parameters
    ----------
    path
        Folder with a causal language model and its tokenizer, as ``save_pretrained`` writes them; by default
        ``ACCELERA_LLM_PATH``. Nothing is ever downloaded.
    four_bit
        Whether to load the weights in 4 bits through bitsandbytes, else as they are stored.
    timeout
        Longest time for the answer, in seconds.

    Raises
    ------
    BackendMissingError
        transformers, accelerate or bitsandbytes is not installed.
    ScorerError
        There is no folder, the model cannot be loaded, its answer cannot be read, or time is up. There is
        no fallback: choose another scorer.
    """
    folder = _folder(path)
    if not timeout > 0:
        raise ArgumentError(f"[scorer] timeout={timeout} must be above 0")
    key = (content_hash(trace), str(folder.resolve()), four_bit)
    if key not in _rankings:
        while len(_rankings) >= _REMEMBERED:
            _rankings.pop(next(iter(_rankings)))
        _rankings[key] = _asked(trace, folder, four_bit, timeout)
    found: NDArray[np.float64] = _rankings[key].copy()
    return found


def _folder(path: str | Path | None) -> Path:
    given = settings.current_value("llm_path") if path is None else path
    if given is None:
        raise ScorerError(
            "[scorer] the llm scorer needs a language model: give path=, or set ACCELERA_LLM_PATH, to a "
            "folder with its weights and tokenizer"
        )
    folder = Path(given)
    if not (folder / "config.json").is_file():
        raise ScorerError(f"[scorer] {folder} holds no config.json; name a folder that save_pretrained wrote")
    return folder


def _asked(trace: Trace, folder: Path, four_bit: bool, timeout: float) -> NDArray[np.float64]:
    tensors = chosen_tensors(trace)
    tokenizer, model = _loaded(str(folder), four_bit)
    answer = _answer(tokenizer, model, prompt_for(trace, tensors), len(tensors), timeout)
    ranking = np.array(parsed_ranking(answer, len(tensors)), dtype=np.int64)
    by_buffer = np.full(trace.buffer_count, np.nan)
    by_buffer[tensors[ranking]] = np.linspace(1.0, 0.0, len(ranking))
    ranked = by_buffer[trace.accessed]
    scores: NDArray[np.float64] = np.where(np.isnan(ranked), heuristic_scores(trace), ranked)
    return scores


def _answer(tokenizer: Any, model: Any, prompt: str, count: int, timeout: float) -> str:
    asked = tokenizer(_as_chat(tokenizer, prompt), return_tensors="pt").to(model.device)
    length = asked["input_ids"].shape[1]
    grammar = Grammar(tokenizer, count, length)
    began = time.monotonic()
    made = model.generate(
        input_ids=asked["input_ids"],
        attention_mask=asked["attention_mask"],
        max_new_tokens=_TOKENS_PER_TENSOR * count + 16,
        max_time=timeout,
        do_sample=False,
        prefix_allowed_tokens_fn=grammar,
        pad_token_id=tokenizer.eos_token_id,
    )
    if time.monotonic() - began >= timeout:
        raise ScorerError(
            f"[scorer] the language model gave no answer about {count} tensors within {timeout:g} s; "
            "raise timeout or take scorer='replay'"
        )
    return grammar.text(made[0][length:].tolist())


def _as_chat(tokenizer: Any, prompt: str) -> str:
    if tokenizer.chat_template is None:
        return prompt
    words: str = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
    )
    return words


@lru_cache(maxsize=1)
def _loaded(folder: str, four_bit: bool) -> tuple[Any, Any]:
    """Return tokenizer and model; only files of ``folder`` are read, and no code of its own is run."""
    transformers = _import_transformers(four_bit)
    local = {"local_files_only": True, "trust_remote_code": False}
    bits = transformers.BitsAndBytesConfig(load_in_4bit=True) if four_bit else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **local)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, quantization_config=bits, use_safetensors=True, **local
            )
    except Exception as error:
        how = "in 4 bits " if four_bit else ""
        raise ScorerError(
            f"[scorer] the language model in {folder} cannot be loaded {how}here: {error}; "
            "four_bit=False loads it as it is stored"
        ) from error
    return tokenizer, model.eval()


def _import_transformers(four_bit: bool) -> Any:
    with needed_for("scorer", "or take scorer='replay'"):
        import accelerate  # noqa: F401
        import transformers

        if four_bit:
            import bitsandbytes  # noqa: F401
    return transformers
