import pytest

from accelera.errors import BudgetExceededError, UnknownNameError
from accelera.memory import Hierarchy, Tier
from accelera.memory._internal import Budget

MIB = 2**20


class Usable:
    def get_total_memory(self):
        return 1000 * MIB

    def get_usable_memory(self):
        return 700 * MIB

    def get_budgeted_memory(self):
        return None


@pytest.mark.parametrize(
    ("amount", "limit"),
    [
        ("512MiB", 512 * MIB),
        (3 * MIB, 3 * MIB),
        (0.25, 250 * MIB),
        ("25%", 250 * MIB),
        ("0.25", 250 * MIB),
        (1, 1),
        (1.0, 1000 * MIB),
        (2.0 * MIB, 2 * MIB),
    ],
)
def test_budgets_as_people_write_them(amount, limit):
    assert Budget.parse(amount, Usable()) == Budget(limit, "budget")


def test_without_a_budget_the_variable_then_the_threshold_decides(monkeypatch):
    monkeypatch.delenv("ACCELERA_BUDGET", raising=False)
    assert Budget.parse(None, Usable()) == Budget(700 * MIB, "ACCELERA_MEMORY_THRESHOLD")
    monkeypatch.setenv("ACCELERA_BUDGET", "10%")
    assert Budget.parse(None, Usable()) == Budget(100 * MIB, "ACCELERA_BUDGET")


@pytest.mark.parametrize(
    "amount", ["lots", -1, float("nan"), float("inf"), 0, 0.0, True, "-3MiB", 1.5, "1.5"]
)
def test_what_is_not_a_budget(amount):
    with pytest.raises(ValueError, match=r"size|leaves no memory|whole number"):
        Budget.parse(amount, Usable())


def test_refusal_states_both_numbers():
    budget = Budget(10 * MIB, "budget")
    budget.require(10 * MIB, "matmul", "the result")
    with pytest.raises(BudgetExceededError, match=r"\[matmul\] the result .* 10\.0 MiB") as caught:
        budget.require(10 * MIB + 1, "matmul", "the result")
    assert (caught.value.needed_bytes, caught.value.budget_bytes) == (10 * MIB + 1, 10 * MIB)
    assert isinstance(caught.value, MemoryError)
    assert str(caught.value).endswith(
        "10.0 MiB (10,485,760 bytes) that budget allows; raise it to at least 10,485,761 bytes, or write the "
        "result to a file with out="
    )


def test_what_is_free_is_no_setting_to_be_raised_to_a_number_of_bytes():
    free = Budget(10 * MIB, "ACCELERA_MEMORY_THRESHOLD")
    with pytest.raises(BudgetExceededError) as caught:
        free.require(11 * MIB, "matmul", "the result")
    assert "that are free now within ACCELERA_MEMORY_THRESHOLD, a share of the memory" in str(caught.value)
    assert "raise it" not in str(caught.value)
    assert "free memory, or set a budget (ACCELERA_BUDGET) of at least 11,534,336 bytes" in str(caught.value)


def test_hierarchy_is_ordered_and_named():
    ram, disk = Tier("ram", 2**34, 1e10), Tier("disk", 2**40, 2e9, latency_s=1e-3)
    machine = Hierarchy((ram, disk))
    assert list(machine) == [ram, disk]
    assert machine["ram"] is ram
    assert machine.below("ram") is disk
    assert machine.below("disk") is None
    assert disk.transfer_s(2 * 10**9, moves=5) == pytest.approx(1.005)
    with pytest.raises(UnknownNameError, match="did you mean 'disk'"):
        machine["disc"]
