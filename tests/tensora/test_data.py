"""Data loading: PyTorch's datasets, samplers and batches, workers that keep the order, and resuming."""

from __future__ import annotations

import collections
import gc
import os
import random as python_random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import accelera.tensora as ts
from accelera.tensora import data, random
from accelera.tensora.serialization import load_checkpoint, save_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


class Squares(data.Dataset[Any]):
    """Sample i: i twice as an array, and its square."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.n:
            raise IndexError(index)
        return np.full(2, index, np.float32), index**2


class Counting(data.IterableDataset[int]):
    """Numbers below n, shared among the workers: worker w of k has every k-th, w of them fewer."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        info = data.get_worker_info()
        if info is None:
            return iter(range(self.n))
        return iter(range(info.id, self.n - info.num_workers * info.id, info.num_workers))


class Uneven(data.IterableDataset[Any]):
    """Many numbers from worker 0, and few from the others."""

    def __iter__(self) -> Iterator[Any]:
        info = data.get_worker_info()
        assert info is not None
        return (np.array([100 * info.id + i]) for i in range(4 if info.id else 20))


class Noise(Squares):
    """Samples of random numbers from all generators."""

    def __getitem__(self, index: int) -> Any:
        return index, random.rand(2), np.random.random(), python_random.random()


class Slow(Squares):
    """Samples that take their time: batches of later workers are ready first."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.03 if index % 4 == 0 else 0)
        return index


class Point(NamedTuple):
    x: Any
    y: Any


def plain(value: Any) -> Any:
    """Nested tensors as lists with their types."""
    if isinstance(value, ts.Tensor):
        return value.dtype.name, value.tolist()
    if isinstance(value, (list, tuple)):
        return type(value), [plain(each) for each in value]
    if isinstance(value, dict):
        return type(value), {name: plain(each) for name, each in value.items()}
    return value


def numbers_of(loader: Any) -> list[list[int]]:
    """First element of the samples of each batch."""
    return [np.asarray(batch[0])[:, 0].astype(int).tolist() for batch in loader]


def forked(dataset: Any, **options: Any) -> data.DataLoader:
    """Loader with two workers that start quickly."""
    return data.DataLoader(
        dataset, **{"batch_size": 4, "num_workers": 2, "multiprocessing_context": "fork", **options}
    )


# --- datasets ---------------------------------------------------------------------------------------------


def test_tensors_as_a_dataset() -> None:
    dataset = data.TensorDataset(ts.arange(6).reshape(3, 2), ts.asarray([1.0, 2.0, 3.0]))
    assert len(dataset) == 3
    assert plain(dataset[1]) == (tuple, [("int64", [2, 3]), ("float32", 2.0)])
    with pytest.raises(ValueError, match=r"tensors of \[3, 2\] rows"):
        data.TensorDataset(ts.ones((3,)), ts.ones((2,)))
    with pytest.raises(ValueError, match="no tensors"):
        data.TensorDataset()


def test_datasets_put_together() -> None:
    both = Squares(3) + Squares(2)
    assert isinstance(both, data.ConcatDataset)
    assert [both[i][1] for i in range(-5, 5)] == [0, 1, 4, 0, 1] * 2
    for wrong in (5, -6):
        with pytest.raises(IndexError, match="there are 5 samples"):
            both[wrong]
    chain = Counting(3) + Counting(2)
    assert list(chain) == [0, 1, 2, 0, 1]
    stacked = data.StackDataset(a=Squares(3), b=[7, 8, 9])
    assert (len(stacked), stacked[2]["b"], stacked[2]["a"][1]) == (3, 9, 4)
    assert data.StackDataset([1, 2], [3, 4])[1] == (2, 4)
    assert [data.Subset(Squares(9), [8, 1])[i][1] for i in range(2)] == [64, 1]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: data.ConcatDataset([]), ValueError),
        (lambda: data.ConcatDataset([Counting(3)]), ValueError),
        (lambda: data.ChainDataset([Squares(3)]), TypeError),
        (lambda: data.StackDataset(), ValueError),
        (lambda: data.StackDataset([1], [1, 2]), ValueError),
        (lambda: data.StackDataset([1], a=[1]), ValueError),
        (lambda: Counting(3)[0], TypeError),
        (lambda: data.random_split(Squares(5), [2, 2]), ValueError),
        (lambda: data.random_split(Squares(5), [0.5, 0.6]), ValueError),
    ],
)
def test_bad_datasets(make: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        make()


@pytest.mark.filterwarnings("ignore:Length of split")
@given(st.integers(0, 50), st.lists(st.integers(0, 16), max_size=4))
@settings(max_examples=30, deadline=None)
def test_random_splits_have_torchs_lengths(n: int, cuts: list[int]) -> None:
    from torch.utils.data import random_split

    numbers: Any = range(n)
    shares = np.diff([0, *sorted(cuts), 16]) / 16
    found = data.random_split(Squares(n), [*shares], random.Generator(0))
    assert [len(each) for each in found] == [len(each) for each in random_split(numbers, [*shares])]
    assert sorted(i for each in found for i in each.indices) == list(range(n))
    assert [len(each) for each in data.random_split(Squares(n + 3), [n, 3])] == [n, 3]


# --- samplers ---------------------------------------------------------------------------------------------


def test_random_samplers_repeat_with_their_generator() -> None:
    for make in (
        lambda g: data.RandomSampler(range(40), generator=g),
        lambda g: data.RandomSampler(range(40), replacement=True, num_samples=70, generator=g),
        lambda g: data.RandomSampler(range(40), num_samples=90, generator=g),
        lambda g: data.SubsetRandomSampler([5, 3, 8, 1], g),
        lambda g: data.WeightedRandomSampler([1, 0, 3, 2], 30, generator=g),
        lambda g: data.WeightedRandomSampler([1, 0, 3, 2], 3, replacement=False, generator=g),
    ):
        first = make(random.Generator(1))
        epochs = [list(first) for _ in range(2)]
        again = make(random.Generator(1))
        assert [list(again) for _ in range(2)] == epochs
        assert all(len(each) == len(first) for each in epochs)
        assert epochs[0] != epochs[1] or len(first) < 5


def test_random_samplers_take_what_they_should() -> None:
    source = random.Generator(0)
    assert sorted(data.RandomSampler(range(40), generator=source)) == list(range(40))
    many = collections.Counter(data.RandomSampler(range(40), num_samples=90, generator=source))
    assert set(many.values()) == {2, 3}
    assert sorted(data.SubsetRandomSampler([5, 3, 8], source)) == [3, 5, 8]
    weights = [1.0, 0.0, 3.0, 6.0]
    drawn = collections.Counter(data.WeightedRandomSampler(weights, 20000, generator=source))
    np.testing.assert_allclose([drawn[i] / 20000 for i in range(4)], [0.1, 0, 0.3, 0.6], atol=0.015)
    firsts = collections.Counter(
        next(iter(data.WeightedRandomSampler(weights, 3, replacement=False, generator=source)))
        for _ in range(2000)
    )
    np.testing.assert_allclose([firsts[i] / 2000 for i in range(4)], [0.1, 0, 0.3, 0.6], atol=0.05)
    assert sorted(data.WeightedRandomSampler(weights, 3, replacement=False)) == [0, 2, 3]


@given(st.integers(1, 40), st.integers(1, 5), st.booleans(), st.booleans())
@settings(max_examples=30, deadline=None)
def test_shares_of_processes_are_as_torchs(n: int, ranks: int, shuffle: bool, drop_last: bool) -> None:
    from torch.utils.data import DistributedSampler

    shares, theirs = [], []
    for rank in range(ranks):
        ours = data.DistributedSampler(range(n), ranks, rank, shuffle, drop_last=drop_last)
        ours.set_epoch(3)
        shares.append(list(ours))
        numbers: Any = range(n)
        torchs = DistributedSampler(numbers, ranks, rank, False, drop_last=drop_last)
        theirs.append(list(torchs))
        assert len(ours) == len(shares[-1]) == len(torchs)
    if not shuffle:
        assert shares == theirs
    assert len(set().union(*shares)) == len(set().union(*theirs))


@given(st.integers(0, 20), st.integers(1, 7), st.booleans())
def test_batches_of_numbers(n: int, size: int, drop_last: bool) -> None:
    from torch.utils.data import BatchSampler

    ours = data.BatchSampler(data.SequentialSampler(range(n)), size, drop_last)
    theirs = BatchSampler(range(n), size, drop_last)
    assert list(ours) == list(theirs)
    assert len(ours) == len(theirs)


@pytest.mark.parametrize(
    "make",
    [
        lambda: data.RandomSampler(range(3), num_samples=0),
        lambda: list(data.RandomSampler([], num_samples=3)),
        lambda: data.BatchSampler(range(3), 0),
        lambda: data.BatchSampler(range(3), True),
        lambda: data.WeightedRandomSampler([1, -1], 2),
        lambda: data.WeightedRandomSampler([0, 0], 2),
        lambda: data.WeightedRandomSampler([1, float("nan")], 2),
        lambda: data.WeightedRandomSampler([1, 1], 3, replacement=False),
        lambda: data.WeightedRandomSampler([1, 1], 2.5),  # type: ignore[arg-type]
        lambda: data.DistributedSampler(range(3)),
        lambda: data.DistributedSampler(range(3), 2, 2),
    ],
)
def test_bad_samplers(make: Any) -> None:
    with pytest.raises(ValueError, match=r"give|draw fewer"):
        make()


# --- batches ----------------------------------------------------------------------------------------------


def test_samples_become_the_batches_of_torch() -> None:
    import torch
    from torch.utils.data import default_collate

    samples = [
        {
            "a": np.full((2,), i, np.int16),
            "b": (i, i / 2, bool(i)),
            "c": "x" * i,
            "d": [np.float64(i), Point(i, 1.5)],
        }
        for i in range(3)
    ]
    found, expected = data.default_collate(samples), default_collate(samples)

    def check(ours: Any, theirs: Any) -> None:
        if isinstance(theirs, torch.Tensor):
            assert f"torch.{ours.dtype.name}" == str(theirs.dtype)
            assert ours.tolist() == theirs.tolist()
        elif isinstance(theirs, dict):
            assert ours.keys() == theirs.keys()
            for name in theirs:
                check(ours[name], theirs[name])
        elif isinstance(theirs, (list, tuple)):
            assert len(ours) == len(theirs)
            for each in zip(ours, theirs, strict=True):
                check(*each)
        else:
            assert ours == theirs

    check(found, expected)
    assert isinstance(found["d"][1], Point)
    tensors = data.default_collate([ts.ones((2,), dtype="bfloat16")] * 3)
    assert (tensors.shape, tensors.dtype) == ((3, 2), ts.bfloat16)
    assert plain(data.default_collate([torch.ones(2), torch.zeros(2)])) == ("float32", [[1, 1], [0, 0]])


def test_what_is_no_batch() -> None:
    for wrong in ([None], [object()], [np.array(["a"])]):
        with pytest.raises(TypeError, match="collate_fn of your own"):
            data.default_collate(wrong)
    with pytest.raises(ValueError, match=r"sequences of \[1, 2\] items"):
        data.default_collate([[1], [1, 2]])


def test_single_samples_are_converted() -> None:
    found = data.default_convert({"a": [np.ones(2)], "b": Point("x", 3), "c": np.array(["y"])})
    assert plain(found["a"]) == (list, [("float64", [1, 1])])
    assert found["b"] == Point("x", 3)
    assert isinstance(found["c"], np.ndarray)
    whole = list(data.DataLoader(Squares(3), batch_size=None))
    assert [plain(each[0]) for each in whole] == [("float32", [i, i]) for i in range(3)]
    assert [each[1] for each in whole] == [0, 1, 4]
    for workers in (1, 2):
        found = list(forked(Squares(9), batch_size=None, num_workers=workers, sampler=range(8, 0, -1)))
        assert [each[1] for each in found] == [i**2 for i in range(8, 0, -1)]


# --- the loader -------------------------------------------------------------------------------------------


@given(st.integers(0, 20), st.integers(1, 6), st.booleans())
@settings(max_examples=20, deadline=None)
def test_batches_in_order(n: int, size: int, drop_last: bool) -> None:
    from torch.utils.data import DataLoader

    squares: Any = Squares(n)
    numbers: Any = range(n)
    loader = data.DataLoader(squares, size, drop_last=drop_last)
    theirs = DataLoader(squares, size, drop_last=drop_last)
    assert [batch[1].tolist() for batch in loader] == [batch[1].tolist() for batch in theirs]
    assert len(loader) == len(theirs)
    stream = data.DataLoader(Counting(n), size, drop_last=drop_last)
    assert [each.tolist() for each in stream] == [
        each.tolist() for each in DataLoader(numbers, size, drop_last=drop_last)
    ]


def test_the_order_repeats_with_the_generator() -> None:
    orders = []
    for _ in range(2):
        loader = data.DataLoader(Squares(20), 4, shuffle=True, generator=random.Generator(3))
        orders.append([numbers_of(loader) for _ in range(2)])
    assert orders[0] == orders[1]
    assert orders[0][0] != orders[0][1]
    assert sorted(i for batch in orders[0][0] for i in batch) == list(range(20))
    random.manual_seed(1)
    first = numbers_of(data.DataLoader(Squares(20), 4, shuffle=True))
    random.manual_seed(1)
    assert numbers_of(data.DataLoader(Squares(20), 4, shuffle=True)) == first


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True, "sampler": [1]},
        {"batch_sampler": [[1]], "batch_size": 3},
        {"batch_sampler": [[1]], "shuffle": True},
        {"batch_sampler": [[1]], "sampler": np.arange(3)},
        {"batch_size": None, "drop_last": True},
        {"batch_size": 0},
        {"num_workers": -1},
        {"timeout": 3},
        {"prefetch_factor": 2},
        {"persistent_workers": True},
        {"multiprocessing_context": "fork"},
        {"num_workers": 2, "prefetch_factor": 0},
        {"num_workers": 2, "timeout": -1},
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"does not go with|give"):
        data.DataLoader(Squares(3), **options)
    with pytest.raises(ValueError, match="IterableDataset"):
        data.DataLoader(Counting(3), shuffle=True)


def test_samplers_of_ones_own() -> None:
    assert numbers_of(data.DataLoader(Squares(9), 2, sampler=np.array([5, 3, 8]))) == [[5, 3], [8]]
    assert numbers_of(data.DataLoader(Squares(9), batch_sampler=[[1], [2, 3]])) == [[1], [2, 3]]
    loader = data.DataLoader(Squares(9), 2, collate_fn=lambda samples: [each[1] for each in samples])
    assert next(iter(loader)) == [0, 1]


def test_a_dataset_that_gives_batches() -> None:
    class Whole(Squares):
        def __getitems__(self, indices: list[int]) -> Any:
            return [(np.array([-i]), i) for i in indices]

    assert numbers_of(data.DataLoader(Whole(3), 2)) == [[0, -1], [-2]]


# --- workers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fusion", ["eager"], indirect=True)
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_of_every_start_method(method: str, fusion: str) -> None:
    """With a class and functions that are local, and elements that lie in shared memory."""

    class Local(Squares):
        def __getitem__(self, index: int) -> Any:
            return ts.full((1 << 15,), index, dtype="bfloat16"), np.full(1 << 15, index), f"{index}"

    loader = data.DataLoader(
        Local(7), 2, num_workers=2, multiprocessing_context=method, worker_init_fn=lambda i: None
    )
    batches = list(loader)
    assert [batch[2] for batch in batches] == [["0", "1"], ["2", "3"], ["4", "5"], ["6"]]
    for batch in batches:
        expected = [int(each) for each in batch[2]]
        assert batch[0].dtype == ts.bfloat16
        assert [float(ts.mean(row.float())) for row in batch[0]] == expected
        batch[1][...] = 7  # it is the parent's
        assert batch[1].numpy().min() == 7


def test_order_is_kept_and_workers_are_used() -> None:
    loader = forked(Slow(64), prefetch_factor=3)
    assert [batch.tolist() for batch in loader] == [list(range(i, i + 4)) for i in range(0, 64, 4)]

    class Where(Squares):
        def __getitem__(self, index: int) -> Any:
            info = data.get_worker_info()
            assert info is not None
            assert isinstance(info.dataset, Where)
            return info.id, info.num_workers, info.seed % 1000, os.getpid()

    ids, counts, seeds, pids = zip(
        *[batch[0].tolist() for batch in forked(Where(64), collate_fn=np.array)], strict=True
    )
    assert (set(ids), set(counts), len(set(seeds)), len(set(pids))) == ({0, 1}, {2}, 2, 2)
    assert data.get_worker_info() is None


def test_streams_of_workers_come_in_turn() -> None:
    for _ in range(3):
        batches = [each.tolist() for each in forked(Counting(21), batch_size=3)]
        assert batches == [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11], [12, 14, 16], [13, 15, 17], [18, 20]]
    assert list(forked(Counting(6), batch_size=None)) == [0, 1, 2, 3, 4]
    assert len(list(forked(Counting(21), batch_size=3, drop_last=True))) == 6


def test_random_numbers_do_not_depend_on_the_number_of_workers() -> None:
    found = []
    for workers in (1, 2, 3):
        loader = forked(Noise(24), num_workers=workers, shuffle=True, generator=random.Generator(4))
        found.append([plain(batch) for batch in loader])
    assert found[0] == found[1] == found[2]
    drawn = [row for batch in found[0] for row in map(tuple, batch[1][1][1])]
    assert len(set(drawn)) == 24


def test_persistent_workers_stay() -> None:
    class Pid(Squares):
        def __getitem__(self, index: int) -> Any:
            return os.getpid()

    loader = forked(Pid(16), persistent_workers=True)
    first = {pid for batch in loader for pid in batch.tolist()}
    iterator = iter(loader)
    next(iterator)  # and left in the middle
    again = [pid for batch in loader for pid in batch.tolist()]
    assert len(again) == 16
    assert set(again) == first
    with pytest.raises(RuntimeError, match="later iteration"):
        list(iterator)
    streams = forked(Counting(8), persistent_workers=True, batch_size=2)
    assert [[each.tolist() for each in streams] for _ in range(2)] == [[[0, 2], [1, 3], [4, 6], [5]]] * 2
    del loader, iterator, streams
    gc.collect()
    assert_ended(first)


class Custom(Exception):
    def __init__(self, place: int, why: str) -> None:
        super().__init__(f"{why} at {place}")
        self.place = place

    def __reduce__(self) -> Any:
        return Custom, (self.place, "bad")


class Unpicklable(Exception):
    def __init__(self, lock: Any) -> None:
        super().__init__("holds a lock")
        self.lock = lock


class Failing(Squares):
    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise Custom(index, "bad")
        if index == 9:
            raise Unpicklable(threading.Lock())
        if index == 13:
            raise StopIteration
        return index


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_keep_type_and_traceback(workers: int) -> None:
    loader = forked(Failing(16)) if workers else data.DataLoader(Failing(16), 4)
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1, 2, 3]
    with pytest.raises(Custom, match="bad at 5") as raised:
        next(iterator)
    assert raised.value.place == 5
    if workers:
        assert "In worker 1 of the DataLoader" in str(raised.value.__cause__)
        assert "in __getitem__" in str(raised.value.__cause__)
        with pytest.raises(RuntimeError, match=r"Unpicklable: holds a lock"):
            next(iterator)
    else:
        with pytest.raises(Unpicklable):
            next(iterator)
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


def test_an_error_at_the_start_of_a_worker_arrives() -> None:
    def begin(worker: int) -> None:
        raise LookupError(f"no worker {worker} today")

    with pytest.raises(LookupError, match="no worker 0 today"):
        next(iter(forked(Squares(8), worker_init_fn=begin)))


def assert_ended(pids: Any) -> None:
    """None of the processes runs any more."""
    deadline = time.monotonic() + 5
    for pid in pids:
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not Path(f"/proc/{pid}").exists()


def workers_of(iterator: Any) -> list[int]:
    found: list[int] = iterator._pool.pids
    return found


def test_a_killed_worker_is_an_error() -> None:
    class Dying(Squares):
        def __getitem__(self, index: int) -> Any:
            if index == 6:
                os.kill(os.getpid(), signal.SIGKILL)
            return index

    iterator = iter(forked(Dying(16)))
    pids = workers_of(iterator)
    with pytest.raises(RuntimeError, match=r"worker 1 \(process \d+\) ended by SIGKILL"):
        list(iterator)
    with pytest.raises(RuntimeError, match="workers were lost"):
        next(iterator)
    assert_ended(pids)
    iterator = iter(forked(Slow(4000)))
    next(iterator)
    os.kill(workers_of(iterator)[0], signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"worker 0 .* ended by SIGKILL"):
        list(iterator)


def test_a_worker_that_exits_is_an_error() -> None:
    class Leaving(Squares):
        def __getitem__(self, index: int) -> Any:
            os._exit(3)

    with pytest.raises(RuntimeError, match=r"ended with exit code 3"):
        list(forked(Leaving(16)))


def test_a_batch_that_does_not_come_in_time_is_an_error() -> None:
    class Stuck(Squares):
        def __getitem__(self, index: int) -> Any:
            if index == 4:
                time.sleep(60)
            return index

    iterator = iter(forked(Stuck(16), timeout=0.3))
    pids = workers_of(iterator)
    assert next(iterator).tolist() == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match=r"no batch came within timeout=0.3 s"):
        list(iterator)
    del iterator
    gc.collect()
    assert_ended(pids)


def test_workers_end_with_their_iterator() -> None:
    iterator = iter(forked(Slow(4000)))
    pids = workers_of(iterator)
    next(iterator)
    del iterator
    assert_ended(pids)

    def fail() -> None:
        for _ in forked(Slow(400)):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    iterator = iter(forked(Squares(8)))
    pids = workers_of(iterator)
    assert len(list(iterator)) == 2
    assert_ended(pids)


PARENT = """
import os, sys, time
import accelera.tensora as ts
from accelera.tensora import data
class Slow(data.Dataset):
    def __len__(self): return 1000
    def __getitem__(self, i):
        time.sleep(0.005)
        return i
if __name__ == "__main__":
    options = {"batch_size": 2, "num_workers": 2, "multiprocessing_context": "fork"}
    iterators = [iter(data.DataLoader(Slow(), **options)) for _ in range(2)]
    for each in iterators:
        next(each)
    print(*(pid for each in iterators for pid in each._pool.pids), flush=True)
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), 9)
    if sys.argv[1] == "raises":
        raise SystemExit(4)
"""


@pytest.mark.parametrize("fusion", ["eager"], indirect=True)
@pytest.mark.parametrize("how", ["returns", "raises", "killed"])
def test_workers_end_with_the_program(tmp_path: Path, how: str, fusion: str) -> None:
    (tmp_path / "program.py").write_text(PARENT)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), how],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    pids = done.stdout.split()
    assert len(pids) == 4, done.stderr
    assert done.stderr == ""
    assert done.returncode == {"returns": 0, "raises": 4, "killed": -9}[how]
    assert_ended(pids)


def test_batches_lie_in_shared_memory_and_leave_with_their_tensors() -> None:
    class Big(Squares):
        def __getitem__(self, index: int) -> Any:
            return np.full(1 << 18, index, np.float32)

    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("accelera-parcel")

    before, descriptors = mapped(), len(os.listdir("/proc/self/fd"))
    batches = list(forked(Big(12), batch_size=2))
    assert mapped() - before == 6
    row = batches[3][1]
    del batches
    assert mapped() - before == 1
    assert row.tolist()[::1000] == [7.0] * 263
    del row
    gc.collect()
    assert mapped() == before
    assert len(os.listdir("/proc/self/fd")) <= descriptors


# --- resuming ---------------------------------------------------------------------------------------------


def loaders() -> dict[str, Any]:
    """Functions that make loaders whose iteration is to be resumed."""
    return {
        "shuffled": lambda: data.DataLoader(Squares(26), 4, shuffle=True, generator=random.Generator(1)),
        "workers": lambda: forked(Squares(26), shuffle=True, generator=random.Generator(1)),
        "sequential": lambda: data.DataLoader(Squares(26), 4),
        "stream": lambda: data.DataLoader(Counting(26), 4, collate_fn=lambda x: [np.array([[i] for i in x])]),
        "streams of workers": lambda: forked(Uneven(), collate_fn=lambda x: [np.array(x)]),
        "weighted": lambda: data.DataLoader(
            Squares(26), 4, sampler=data.WeightedRandomSampler(range(26), 26, generator=random.Generator(2))
        ),
        "default generator": lambda: data.DataLoader(Squares(26), 4, sampler=data.RandomSampler(range(26))),
        "whole batches": lambda: data.DataLoader(
            Squares(26), batch_sampler=data.BatchSampler(data.RandomSampler(range(26)), 4)
        ),
    }


@pytest.mark.parametrize("name", list(loaders()))
@pytest.mark.parametrize("done", [0, 3, 5])
def test_an_epoch_is_resumed(name: str, done: int, tmp_path: Path) -> None:
    random.manual_seed(9)
    make = loaders()[name]
    loader = make()
    next(iter(loader))  # an epoch that was left
    iterator = iter(loader)
    for _ in range(done):
        next(iterator)
    random.rand(3)  # dropout draws as well
    parts = {"loader": loader, "generator": random.default_generator}
    save_checkpoint(tmp_path / "c", **parts)
    rest = [numbers_of(iterator), numbers_of(loader)]
    random.manual_seed(10)
    other = make()
    load_checkpoint(tmp_path / "c", **{**parts, "loader": other})
    assert other.state_dict()["position"] == done
    drawn = random.default_generator.state
    resumed = iter(other)
    assert random.default_generator.state == drawn
    assert [numbers_of(resumed), numbers_of(other)] == rest


def test_random_numbers_of_workers_are_resumed() -> None:
    def make() -> data.DataLoader:
        return forked(Noise(24), shuffle=True, generator=random.Generator(4))

    loader = make()
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    state = loader.state_dict()
    rest = [plain(batch) for batch in iterator]
    other = make()
    other.load_state_dict(state)
    assert [plain(batch) for batch in other] == rest


def test_a_finished_epoch_is_not_repeated() -> None:
    loader = data.DataLoader(Squares(8), 4, shuffle=True, generator=random.Generator(1))
    numbers_of(loader)
    state = loader.state_dict()
    assert (state["position"], state["seed"]) == (0, None)
    rest = numbers_of(loader)
    other = data.DataLoader(Squares(8), 4, shuffle=True, generator=random.Generator(5))
    other.load_state_dict(state)
    assert numbers_of(other) == rest
    with pytest.raises(ValueError, match="give what state_dict returned"):
        other.load_state_dict({"position": 3})
