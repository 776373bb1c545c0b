"""Every ``ACCELERA_*`` environment variable: its default, how it is read, and what it means.

Nothing is read at import. ``current()`` reads when asked, so a variable set later takes effect at the
next call that looks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from accelera._user_paths import user_path
from accelera.errors import ArgumentError, SettingError
from accelera.units import parse_fraction, parse_share

DirectIO = Literal["auto", "always", "never"]
Progress = Literal["auto", "always", "never", "log"]
Interception = Literal["auto", "shim", "stable", "python"]
StrategyName = Literal["auto", "cpu", "gpu", "hybrid"]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]

_TRUE = ("true", "1", "yes", "on")
_FALSE = ("false", "0", "no", "off")


def _parse_flag(text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE + _FALSE:
        raise ArgumentError(f"{text!r} is neither true nor false")
    return word in _TRUE


def _parse_count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ArgumentError(f"{value} is less than 1")
    return value


def _parse_size(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ArgumentError(f"{value} is negative")
    return value


def _parse_gibibytes(text: str) -> float:
    value = float(text)
    if not value >= 0:
        raise ArgumentError(f"{text!r} is not a number from 0")
    return value


def _start_folder() -> Path:
    try:
        return Path.cwd()
    except OSError:
        return Path()


_START_FOLDER = _start_folder()
"""Relative folders are of the directory in which the program started, whatever it changes to later."""


def _parse_folder(text: str) -> str:
    return str(_START_FOLDER / user_path(_parse_name(text), "settings"))


def _parse_name(text: str) -> str:
    return text.strip()


def _one_of(words: tuple[str, ...]) -> Callable[[str], str]:
    """Return a parser that takes one of ``words`` in any case."""
    by_lower = {word.lower(): word for word in words}

    def parse(text: str) -> str:
        return by_lower[text.strip().lower()]

    return parse


class Setting(NamedTuple):
    """One variable: ``ACCELERA_`` and ``name`` in capitals."""

    name: str
    """Field of ``Settings`` that holds it."""
    default: Any
    """Value when the variable is unset or empty."""
    parse: Callable[[str], Any]
    """Text to value; raises ValueError or LookupError."""
    allowed: str
    """Allowed values, in words."""
    sentence: str
    """Meaning of the setting, in a sentence."""
    secret: bool = False
    """Whether its value is never shown."""

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return f"ACCELERA_{self.name.upper()}"


SETTINGS = (
    Setting(
        "memory_threshold",
        0.8,
        parse_fraction,
        "a share above 0 and at most 1, such as 0.8 or 80%",
        "Share of the compute device's memory that may be used when no budget is given.",
    ),
    Setting(
        "budget",
        None,
        parse_share,
        "a size such as 512MiB, or a share such as 50%",
        "Most memory an operation may take; unset means the threshold decides.",
    ),
    Setting(
        "min_chunk_size",
        1,
        _parse_count,
        "a whole number from 1",
        "Fewest rows in a chunk whose size is chosen automatically.",
    ),
    Setting(
        "max_chunk_size",
        None,
        _parse_count,
        "a whole number from 1",
        "Most rows in a chunk whose size is chosen automatically; unset means no limit.",
    ),
    Setting(
        "enable_prefetch",
        True,
        _parse_flag,
        "true or false",
        "Whether the next chunk is loaded while the present one is worked on.",
    ),
    Setting(
        "device",
        None,
        _parse_name,
        "a device name such as cpu or cuda:0",
        "Device that computes; unset means the accelerator if there is one, else the CPU.",
    ),
    Setting(
        "direct_io",
        "auto",
        _one_of(get_args(DirectIO)),
        "auto, always or never",
        "Whether files are read and written past the page cache.",
    ),
    Setting(
        "io_threads",
        2,
        _parse_count,
        "a whole number from 1",
        "Threads that read, and threads that write, while the device computes.",
    ),
    Setting(
        "progress",
        "auto",
        _one_of(get_args(Progress)),
        "auto, always, never or log",
        "Where long operations show their progress; auto: on a terminal or in a notebook.",
    ),
    Setting(
        "min_size",
        1024,
        _parse_size,
        "a whole number from 0",
        "Longest dimension from which an intercepted call is looked at.",
    ),
    Setting(
        "memory_threshold_gb",
        None,
        _parse_gibibytes,
        "a number of GiB from 0, such as 0.5",
        "Operands and result together from which an intercepted call is looked at; unset means an eighth of "
        "the budget.",
    ),
    Setting(
        "spill",
        None,
        _parse_folder,
        "a folder on a disk",
        "Folder for results of intercepted calls that exceed the budget; unset means the temporary folder.",
    ),
    Setting(
        "interception",
        "auto",
        _one_of(get_args(Interception)),
        "auto, shim, stable or python",
        "How calls of torch are caught; auto means the fastest way that works here.",
    ),
    Setting(
        "llm_path",
        None,
        _parse_folder,
        "a folder with a language model's weights and tokenizer",
        "Language model that the llm scorer asks; unset means that it must be named in the call.",
    ),
    Setting(
        "cache",
        None,
        _parse_folder,
        "a folder",
        "Folder where measured rates are kept; unset means accelera in the user's cache folder.",
    ),
    Setting(
        "strategy",
        "auto",
        _one_of(get_args(StrategyName)),
        "auto, cpu, gpu or hybrid",
        "Where StrategyManager.auto runs batches of work; auto decides for every batch.",
    ),
    Setting(
        "workers",
        None,
        _parse_count,
        "a whole number from 1",
        "Tasks that StrategyManager.auto runs at once on the CPU; unset means the usable cores.",
    ),
    Setting(
        "copilot_url",
        None,
        _parse_name,
        "an address such as http://127.0.0.1:8000",
        "Copilot's service that the web UI, and a client without an address, speak to.",
    ),
    Setting(
        "copilot_token",
        None,
        _parse_name,
        "the token that the service was started with",
        "Token that is sent to the Copilot's service; unset means none.",
        secret=True,
    ),
    Setting(
        "log_level",
        None,
        _one_of(get_args(LogLevel)),
        "DEBUG, INFO, WARNING, ERROR or CRITICAL",
        "Level of the accelera logger; set, it also gets a handler that writes to stderr.",
    ),
)
"""Every setting, in the order of the documentation."""


@dataclass(frozen=True)
class Settings:
    """The values in force; one field per entry of ``SETTINGS``."""

    memory_threshold: float
    budget: int | float | None
    min_chunk_size: int
    max_chunk_size: int | None
    enable_prefetch: bool
    device: str | None
    direct_io: DirectIO
    io_threads: int
    progress: Progress
    min_size: int
    memory_threshold_gb: float | None
    spill: str | None
    interception: Interception
    llm_path: str | None
    cache: str | None
    strategy: StrategyName
    workers: int | None
    copilot_url: str | None
    copilot_token: str | None = field(repr=False)
    log_level: LogLevel | None


_VARIABLES = tuple(setting.variable for setting in SETTINGS)
_BY_NAME = {setting.name: setting for setting in SETTINGS}


def current() -> Settings:
    """Return the settings as the environment has them now.

    Raises SettingError naming the variable, its value and what is allowed.
    """
    return _read(tuple(map(os.environ.get, _VARIABLES)))


def current_value(name: str) -> Any:
    """Return one setting by its field's name: a tenth of the cost of ``current``."""
    setting = _BY_NAME[name]
    text = os.environ.get(setting.variable)
    return setting.default if text is None else _value(setting, text)


def cache_folder() -> Path:
    """Return the folder for what is kept from run to run; it need not exist yet."""
    named = current_value("cache")
    if named is not None:
        return Path(named).expanduser()
    usual = {"darwin": "~/Library/Caches", "win32": "~/AppData/Local"}.get(sys.platform, "~/.cache")
    return _START_FOLDER / Path(os.environ.get("XDG_CACHE_HOME") or usual).expanduser() / "accelera"


def hugging_face_cache() -> Path:
    """Return the folder where ``huggingface_hub`` keeps repositories, as its environment variables state."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return Path(os.environ[variable]).expanduser()
    usual = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(os.environ.get("HF_HOME") or usual).expanduser() / "hub"


def child_environment(**values: str | None) -> dict[str, str]:
    """Return this process's environment with the settings ``values``, by field name; None unsets one.

    For a child process: what others must not see, such as a token, goes there and not into its arguments.
    """
    found = dict(os.environ)
    for name, value in values.items():
        variable = _BY_NAME[name].variable
        if value is None:
            found.pop(variable, None)
        else:
            found[variable] = value
    return found


def passed_on(*names: str) -> dict[str, str]:
    """Return those variables of this process's environment, for a child that is to get no others."""
    return {name: os.environ[name] for name in names if name in os.environ}


def visible_gpus() -> str | None:
    """Return the GPUs that ``CUDA_VISIBLE_DEVICES`` leaves to this process; None: all."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def gpus_in_bus_order() -> bool:
    """Return whether ``CUDA_DEVICE_ORDER`` numbers GPUs by their place on the bus, and not by their speed."""
    return os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"


@lru_cache(maxsize=8)
def _read(texts: tuple[str | None, ...]) -> Settings:
    values = {setting.name: _value(setting, text) for setting, text in zip(SETTINGS, texts, strict=True)}
    settings = Settings(**values)
    _check_chunk_sizes(settings)
    return settings


def _value(setting: Setting, text: str | None) -> Any:
    if text is None or not text.strip():
        return setting.default
    try:
        return setting.parse(text)
    except (ValueError, LookupError) as error:
        raise SettingError(
            f"[settings] {setting.variable}={text!r} cannot be read; write {setting.allowed}"
        ) from error


def _check_chunk_sizes(settings: Settings) -> None:
    low, high = settings.min_chunk_size, settings.max_chunk_size
    if high is not None and high < low:
        raise SettingError(
            f"[settings] ACCELERA_MAX_CHUNK_SIZE={high} is below ACCELERA_MIN_CHUNK_SIZE={low}; "
            "raise the one or lower the other"
        )
