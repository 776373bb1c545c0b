"""Sizes as people write them: bytes (``"512MiB"``) and shares of a whole (``"50%"``), parsed and printed."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable

from accelera._json_values import shown
from accelera.errors import ArgumentError

__all__ = ["format_bytes", "parse_bytes"]

_POWERS = {"": 1, "b": 1}
for _index, _prefix in enumerate("kmgtp", start=1):
    _POWERS[_prefix] = _POWERS[f"{_prefix}ib"] = 1024**_index
    _POWERS[f"{_prefix}b"] = 1000**_index

_SECONDS_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))

_MOST = 2**62
"""No memory is larger, and sums of two such sizes still are 64-bit integers."""

_EXAMPLES = "write for example '512MiB', '2GB' or a number of bytes"

_SIZE = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_bytes(size: int | float | str) -> int:
    """Return ``size`` as a whole number of bytes.

    Strings take a decimal (``kB MB GB TB PB``) or binary (``KiB … PiB``, or the bare letters
    ``K M G T P``) unit, in any case; a bare number is bytes.

    Parameters
    ----------
    size
        A number of bytes, or text such as ``"512MiB"`` or ``"2GB"``.

    Raises
    ------
    ValueError
        When the text is not a size, or is negative, or over 2**62 bytes; a fraction such as ``0.5`` or
        ``"50%"``, since no total is known here.

    Examples
    --------
    >>> parse_bytes("512MiB")
    536870912
    >>> parse_bytes("1.5 GB")
    1500000000
    >>> parse_bytes(4096)
    4096
    >>> parse_bytes("7 parsecs")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    accelera.errors.ArgumentError: [units] '7 parsecs' is not a size: unknown unit 'parsecs'; ...
    """
    if isinstance(size, (int, float)) and not isinstance(size, bool):
        if size != size or size < 0 or size == float("inf"):
            raise ArgumentError(
                f"[units] {shown(size, repr)} is not a size: it must be finite and not negative"
            )
        return _bounded(size, size)
    match = _SIZE.fullmatch(str(size))
    if match is None and str(size).rstrip().endswith("%"):
        raise ArgumentError(
            f"[units] {shown(size, repr)} is a fraction, and the total is not known here; write for example "
            "'512MiB'"
        )
    if match is None:
        raise ArgumentError(f"[units] {shown(size, repr)} is not a size; write for example '512MiB' or '2GB'")
    number, unit = match.groups()
    if unit.lower() not in _POWERS:
        raise ArgumentError(
            f"[units] {shown(size, repr)} is not a size: unknown unit {shown(unit, repr)}; write "
            "for example '512MiB' or '2GB'"
        )
    return _bounded(float(number) * _POWERS[unit.lower()], size)


def _bounded(count: int | float, size: int | float | str) -> int:
    """Return ``count`` as an integer; raises ArgumentError if it is too large, or a fraction of a byte."""
    if 0 < count < 1:
        raise ArgumentError(
            f"[units] {shown(size, repr)} is no size: it is below 1 byte, and the total that it could be a "
            "fraction of is not known here; give 1 byte or more, for example '512MiB'"
        )
    if count > _MOST:
        raise ArgumentError(
            f"[units] {shown(size, repr)} is over 2**62 bytes, 4096 PiB: no memory is that large"
        )
    return int(count)


def parse_share(text: str) -> int | float:
    """Return an amount of memory: bytes as an int, or a share of the whole as a float in (0, 1].

    Raises ValueError when the text is neither a size nor a share.

    >>> parse_share("512MiB"), parse_share("50%"), parse_share("0.5"), parse_share("1048576")
    (536870912, 0.5, 0.5, 1048576)
    """
    trimmed = text.strip()
    if trimmed.endswith("%"):
        return parse_fraction(trimmed)
    if "." in trimmed and _is_number(trimmed) and float(trimmed) <= 1:
        return parse_fraction(trimmed)
    if _is_number(trimmed) and float(trimmed) % 1:
        raise ArgumentError(
            f"[units] {shown(text, repr)} is not a size: no whole number of bytes; write for example '1.5GiB'"
        )
    return parse_bytes(trimmed)


def parse_fraction(text: str) -> float:
    """Return a share in (0, 1] from ``"0.8"`` or ``"80%"``; raises ValueError outside it."""
    trimmed = text.strip()
    number = trimmed.removesuffix("%")
    if not _is_number(number):
        raise ArgumentError(f"[units] {shown(text, repr)} is no share; write for example '60%' or 0.6")
    value = float(number) / 100 if trimmed.endswith("%") else float(number)
    if not 0 < value <= 1:
        raise ArgumentError(
            f"[units] {shown(text, repr)} is no share above 0 and at most 1; write for example '60%'"
        )
    return value


def parse_limit(op: str, limit: object, total: Callable[[], int] | None = None) -> int:
    """Return a limit of memory as a positive number of bytes.

    Every function, option and variable that limits memory reads it by this function: whole bytes, text such
    as ``"512MiB"`` or ``"2GB"``, or a fraction of a total: ``"50%"``, ``"0.5"`` or a float up to 1.

    Parameters
    ----------
    op
        Name of the operation, for messages.
    limit
        The limit as the caller wrote it.
    total
        Returns the bytes that a fraction refers to; called for fractions only. None refuses fractions.

    Raises
    ------
    ArgumentError
        The limit is no size, is not above 0, is not finite, or is a fraction where no total is known.

    Examples
    --------
    >>> parse_limit("budget", "1kB"), parse_limit("budget", 0.5, lambda: 1000)
    (1000, 500)
    >>> parse_limit("budget", "50%")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    accelera.errors.ArgumentError: [budget] '50%' is a fraction, and its total is not known here; ...
    """
    try:
        fraction = _fraction(limit)
        nbytes = _whole_bytes(limit) if fraction is None else None
    except ArgumentError as error:
        problem = re.split(r"; (?:write|give) ", str(error).removeprefix("[units] "))[0]
        raise ArgumentError(f"[{op}] {problem}; {_EXAMPLES}") from None
    if nbytes is None:
        if total is None:
            raise ArgumentError(
                f"[{op}] {shown(limit, repr)} is a fraction, and its total is not known here; {_EXAMPLES}"
            )
        assert fraction is not None
        nbytes = int(fraction * total())
    if nbytes < 1:
        raise ArgumentError(
            f"[{op}] {shown(limit, repr)} leaves no memory; give 1 byte or more, for example '512MiB'"
        )
    return nbytes


def _fraction(limit: object) -> float | None:
    """Return the fraction that ``limit`` is; None for a size, or for what is neither."""
    if isinstance(limit, str):
        fraction = parse_share(limit)
        return fraction if isinstance(fraction, float) else None
    if not isinstance(limit, numbers.Real) or isinstance(limit, numbers.Integral):
        return None
    fraction = float(limit)
    return fraction if 0 < fraction <= 1 else None


def _whole_bytes(limit: object) -> int:
    """Return the bytes of a size that is no fraction."""
    if isinstance(limit, str):
        return parse_bytes(limit)
    if isinstance(limit, bool) or not isinstance(limit, numbers.Real):
        raise ArgumentError(
            f"[units] {shown(limit, repr)} is a {type(limit).__name__}, and no size; {_EXAMPLES}"
        )
    if isinstance(limit, numbers.Integral):
        return parse_bytes(int(limit))
    size = float(limit)
    if math.isfinite(size) and not size.is_integer():
        raise ArgumentError(f"[units] {shown(limit, repr)} is no whole number of bytes; {_EXAMPLES}")
    return parse_bytes(size)


def format_seconds(seconds: float) -> str:
    """Return a duration with three significant digits, or in two units from one minute on.

    Parameters
    ----------
    seconds
        A number of seconds; infinity is ``"never"``.

    Examples
    --------
    >>> format_seconds(0.00193), format_seconds(125), format_seconds(7380), format_seconds(89400)
    ('1.93 ms', '2 min 5 s', '2 h 3 min', '24 h 50 min')
    """
    if not math.isfinite(seconds):
        return "never"
    if abs(seconds) < 59.95:
        return _short_duration(seconds)
    whole = round(seconds)
    hours, days = divmod(whole, 3600), divmod(whole, 86400)
    if whole >= 2 * 86400:
        return _in_two_units(days[0], "d", days[1] // 3600, "h")
    if whole >= 3600:
        return _in_two_units(hours[0], "h", hours[1] // 60, "min")
    return _in_two_units(whole // 60, "min", whole % 60, "s")


def _in_two_units(count: int, unit: str, rest: int, lower_unit: str) -> str:
    return f"{count} {unit}" + (f" {rest} {lower_unit}" if rest else "")


def _short_duration(seconds: float) -> str:
    """Return less than a minute; 0.9995 of a unit would be printed as 1000 of the next smaller one."""
    if not seconds:
        return "0 s"
    factor, unit = next(
        (pair for pair in _SECONDS_UNITS if abs(seconds) >= 0.9995 * pair[0]), _SECONDS_UNITS[-1]
    )
    count = seconds / factor
    decimals = 2 if abs(count) < 9.995 else 1 if abs(count) < 99.95 else 0
    return f"{count:.{decimals}f} {unit}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def format_bytes(count: int | float) -> str:
    """Return ``count`` bytes in the largest binary unit that leaves at least one.

    Parameters
    ----------
    count
        A number of bytes.

    Examples
    --------
    >>> format_bytes(536870912)
    '512.0 MiB'
    >>> format_bytes(1023)
    '1023 B'
    """
    value = float(count)
    if abs(value) < 1024:
        return f"{int(value)} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if abs(value) < 1024:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} PiB"
