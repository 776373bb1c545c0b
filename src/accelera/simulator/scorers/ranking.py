"""A grammar for the answer of a language model: a JSON list with every number once.

At each step the model may only choose tokens after which such a list can still come about, so any model
answers in the right form; whether the order makes sense is for the gate to find out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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
