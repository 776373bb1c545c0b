import pytest

from accelera.engine.routing import GIB, NOT_IN_MEMORY, Route, RouteFacts, route_by_fallback, route_by_memory


def situation(**changed):
    usual = {
        "total_bytes": 3 * GIB,
        "needed_bytes": GIB,
        "has_room": lambda needed: True,
        "device_is_full": lambda: False,
        "chunks_wanted": False,
    }
    return RouteFacts(**{**usual, **changed})


def full(needed):
    return False


@pytest.mark.parametrize(
    ("found", "direct", "on_cpu", "reason"),
    [
        (situation(), True, False, "it fits"),
        (situation(chunks_wanted=True), False, False, "the chunks are the user's"),
        (situation(suits_torch=False), False, False, "torch does not know"),
        (situation(has_room=full), False, False, "does not fit in one piece"),
        (situation(has_room=full, device_is_full=lambda: True), False, True, "0.3 GiB"),
        (situation(chunks_wanted=True, device_is_full=lambda: True), False, True, "0.3 GiB"),
        (situation(device_is_full=lambda: True), True, False, "it fits"),
    ],
)
def test_the_rules(found, direct, on_cpu, reason):
    route = route_by_memory(found)
    assert (route.direct, route.on_cpu, route.chunk_rows) == (direct, on_cpu, None)
    assert reason in route.reason


def test_room_is_asked_for_what_the_operation_adds():
    asked = []
    route_by_memory(situation(has_room=lambda needed: asked.append(needed) or True, needed_bytes=123))
    assert asked == [123]


def test_free_memory_is_looked_up_only_when_it_matters():
    def never():
        raise AssertionError

    assert route_by_memory(situation(device_is_full=never)).direct


def test_operands_on_disk_go_by_a_plan():
    assert route_by_memory(None) is NOT_IN_MEMORY
    assert not NOT_IN_MEMORY.direct


@pytest.mark.parametrize(
    ("strategy", "fits", "expected"),
    [
        ("cpu", True, (True, True, None)),
        ("cpu", False, (False, True, None)),
        ("default_chunk", True, (False, False, 1000)),
    ],
)
def test_fallbacks(strategy, fits, expected):
    route = route_by_fallback(strategy, 1000, fits)
    assert (route.direct, route.on_cpu, route.chunk_rows) == expected
    assert isinstance(route, Route)
