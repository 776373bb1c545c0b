from accelera.chunking import AdaptiveChunking
from accelera.engine.options import PressureWatch
from accelera.memory import MemoryManager


class Card:
    name = "card:0"
    host_memory = False

    def __init__(self):
        self.available, self.own = 800, 0

    def total_bytes(self):
        return 1000

    def available_bytes(self):
        return self.available

    @property
    def allocated_bytes(self):
        return self.own

    def empty_cache(self):
        pass


def watched():
    card, strategy = Card(), AdaptiveChunking()
    return card, strategy, PressureWatch(strategy, MemoryManager(card))


def test_memory_taken_by_others_is_pressure():
    card, _, watch = watched()
    assert not watch.under_pressure()
    card.available = 150
    assert watch.under_pressure()


def test_what_the_run_itself_allocates_is_not():
    card, _, watch = watched()
    card.available, card.own = 100, 700
    assert not watch.under_pressure()
    card.available, card.own = 20, 100
    assert watch.under_pressure()


def test_pressure_is_reported_again_only_when_it_grows():
    card, _, watch = watched()
    card.available = 150
    assert [watch.under_pressure() for _ in range(3)] == [True, False, False]
    card.available = 100
    assert [watch.under_pressure() for _ in range(3)] == [True, False, False]


def test_a_machine_that_was_full_before_is_judged_by_what_it_had():
    card, strategy = Card(), AdaptiveChunking()
    card.available = 100
    watch = PressureWatch(strategy, MemoryManager(card))
    assert not watch.under_pressure()
    card.available = 70
    assert watch.under_pressure()


def test_running_out_of_memory_reaches_the_strategy():
    _, strategy, watch = watched()
    chunks = strategy.get_chunks((64, 1), 16)
    next(chunks)
    watch.on_out_of_memory()
    assert next(chunks)[0] == slice(16, 24)
