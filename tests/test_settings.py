import pytest

from accelera.errors import SettingError
from accelera.settings import SETTINGS, Settings, current, current_value
from accelera.units import parse_share


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in SETTINGS:
        monkeypatch.delenv(setting.variable, raising=False)


def test_defaults_are_the_declared_ones():
    settings = current()
    assert [(name, getattr(settings, name)) for name in Settings.__dataclass_fields__] == [
        (setting.name, setting.default) for setting in SETTINGS
    ]


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("ACCELERA_MEMORY_THRESHOLD", "0.8", "memory_threshold", 0.8),
        ("ACCELERA_MEMORY_THRESHOLD", "75%", "memory_threshold", 0.75),
        ("ACCELERA_BUDGET", "512MiB", "budget", 512 * 2**20),
        ("ACCELERA_BUDGET", "0.5", "budget", 0.5),
        ("ACCELERA_MIN_CHUNK_SIZE", "4", "min_chunk_size", 4),
        ("ACCELERA_MAX_CHUNK_SIZE", "5000", "max_chunk_size", 5000),
        ("ACCELERA_ENABLE_PREFETCH", "TRUE", "enable_prefetch", True),
        ("ACCELERA_ENABLE_PREFETCH", "off", "enable_prefetch", False),
        ("ACCELERA_DEVICE", " cuda:1 ", "device", "cuda:1"),
        ("ACCELERA_DIRECT_IO", "Never", "direct_io", "never"),
        ("ACCELERA_IO_THREADS", "3", "io_threads", 3),
        ("ACCELERA_PROGRESS", "always", "progress", "always"),
        ("ACCELERA_LOG_LEVEL", "debug", "log_level", "DEBUG"),
        ("ACCELERA_LOG_LEVEL", "  ", "log_level", None),
    ],
)
def test_values_are_read_when_asked(monkeypatch, variable, text, field, value):
    monkeypatch.setenv(variable, text)
    assert getattr(current(), field) == value
    assert current_value(field) == value


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("ACCELERA_MEMORY_THRESHOLD", "0"),
        ("ACCELERA_MEMORY_THRESHOLD", "1.5"),
        ("ACCELERA_MEMORY_THRESHOLD", "nan"),
        ("ACCELERA_BUDGET", "much"),
        ("ACCELERA_BUDGET", "-1"),
        ("ACCELERA_MIN_CHUNK_SIZE", "0"),
        ("ACCELERA_MAX_CHUNK_SIZE", "many"),
        ("ACCELERA_ENABLE_PREFETCH", "maybe"),
        ("ACCELERA_DIRECT_IO", "sometimes"),
        ("ACCELERA_IO_THREADS", "0"),
        ("ACCELERA_LOG_LEVEL", "LOUD"),
    ],
)
def test_an_unreadable_value_names_variable_value_and_remedy(monkeypatch, variable, text):
    monkeypatch.setenv(variable, text)
    with pytest.raises(SettingError) as caught:
        current()
    allowed = next(setting.allowed for setting in SETTINGS if setting.variable == variable)
    assert variable in str(caught.value)
    assert repr(text) in str(caught.value)
    assert allowed in str(caught.value)


def test_minimum_above_maximum_is_refused(monkeypatch):
    monkeypatch.setenv("ACCELERA_MIN_CHUNK_SIZE", "100")
    monkeypatch.setenv("ACCELERA_MAX_CHUNK_SIZE", "10")
    with pytest.raises(SettingError, match="MAX_CHUNK_SIZE=10 is below ACCELERA_MIN_CHUNK_SIZE=100"):
        current()


@pytest.mark.parametrize(
    ("text", "share"), [("1.0", 1.0), ("100%", 1.0), ("1", 1), ("2.0", 2), ("1.5GB", 1_500_000_000)]
)
def test_a_share_is_a_fraction_only_when_it_looks_like_one(text, share):
    parsed = parse_share(text)
    assert (type(parsed), parsed) == (type(share), share)
