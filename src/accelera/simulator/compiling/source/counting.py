"""Source in other languages: not parsed, only its keywords counted."""

from __future__ import annotations

import re

_COMMENTS_AND_TEXTS = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
_WORDS = {
    "loops": r"\b(?:for|while|do|loop)\b",
    "branches": r"\b(?:if|switch|match|case)\b",
    "functions": r"\b(?:fn|func|function|def|void|int|float|double|auto)\s+\w+\s*\(",
    "operations": r"[-+*/%]=?(?![-+*/>])",
}


def count_keywords(text: str) -> dict[str, int]:
    """Return how often loops, branches, functions and arithmetic signs are written, comments left out.

    >>> count_keywords("for (int i = 0; i < n; i++) { a[i] += b[i]; } // for all")["loops"]
    1
    """
    code = _COMMENTS_AND_TEXTS.sub(" ", text)
    found = {what: len(re.findall(pattern, code)) for what, pattern in _WORDS.items()}
    return {**found, "lines": sum(bool(line.strip()) for line in code.splitlines())}
