"""Contract of devices as tests: subclass ``DeviceContract`` in a test file and make your device there.

>>> class TestMyDevice(DeviceContract):
...     def make_device(self):
...         return MyDevice()
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accelera.devices import Device
from accelera.errors import DeviceError, DeviceMemoryError, DTypeError, ShapeError

FLOATING = tuple(map(np.dtype, ("float32", "float64", "complex64", "complex128")))
INTEGERS = tuple(np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64))
HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))

Array = np.ndarray[Any, Any]

_inherited = settings(
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow], deadline=None
)
_order = st.permutations((0, 1)).map(tuple)
_seed = st.integers(0, 2**32 - 1)
_length = st.one_of(st.integers(1, 9), st.sampled_from([16, 33, 64, 130]))


class DeviceContract(abc.ABC):
    """Tests that any device passes; ``make_device`` is all a subclass must give."""

    integers = True
    """Whether the device multiplies integers."""

    @abc.abstractmethod
    def make_device(self) -> Device:
        """Return the device to be tested, with at least 32 MiB of memory."""

    def test_states_its_memory_in_bytes(self) -> None:
        """Sizes make sense together."""
        device = self.make_device()
        assert device.name
        assert 0 <= device.available_bytes() <= device.total_bytes()
        sizes = device.workspace_bytes(), device.packing_bytes(), device.staging_bytes()
        assert min(sizes) >= 0

    def test_releases_what_it_allocates_once(self) -> None:
        """A buffer goes back once; a stranger's never."""
        device = self.make_device()
        buffer = device.allocate(1 << 20)
        device.release(buffer)
        with pytest.raises(DeviceError):
            device.release(buffer)

    def test_allocates_nothing_without_complaint(self) -> None:
        """Empty tiles need a buffer too."""
        device = self.make_device()
        buffers = [device.allocate(0), device.allocate(0)]
        for buffer in buffers:
            device.release(buffer)

    def test_says_so_when_memory_is_out(self) -> None:
        """More than there can be is refused, and the device works on."""
        device = self.make_device()
        with pytest.raises(DeviceMemoryError, match="allocate"):
            device.allocate(1 << 60)
        device.release(device.allocate(4096))

    @_inherited
    @given(st.permutations((0, 1, 2)), st.tuples(*[st.integers(0, 5)] * 3))
    def test_views_are_dense_in_the_order_asked_for(self, order: list[int], shape: tuple[int, ...]) -> None:
        """The axis named last is the fastest in memory."""
        device = self.make_device()
        lying = np.arange(np.prod(shape), dtype=np.float32).reshape([shape[axis] for axis in order])
        with _memory(device, lying.nbytes) as buffer:
            flat = device.view(buffer, (lying.size,), lying.dtype, (0,))
            device.upload(lying.ravel(), flat)
            view = device.view(buffer, shape, lying.dtype, tuple(order))
            assert tuple(view.shape) == shape
            np.testing.assert_array_equal(
                fetched(device, view, lying.dtype), lying.transpose(np.argsort(order))
            )

    def test_refuses_views_that_do_not_fit(self) -> None:
        """Too large, or an order that is none."""
        device = self.make_device()
        with _memory(device, 64) as buffer:
            with pytest.raises(ShapeError, match="view"):
                device.view(buffer, (17,), np.dtype(np.float32), (0,))
            with pytest.raises(ShapeError, match="view"):
                device.view(buffer, (2, 2), np.dtype(np.float32), (0, 0))

    @_inherited
    @given(st.sampled_from((*FLOATING, *HALVES, *INTEGERS)), _order, _length, _length, _seed, st.booleans())
    def test_brings_back_what_it_was_given(
        self, dtype: np.dtype[Any], order: tuple[int, ...], rows: int, columns: int, seed: int, turned: bool
    ) -> None:
        """Any bits, any order on either side, strided and reversed host arrays, slices of tiles."""
        device = self.make_device()
        room = random_bits((2 * rows, columns + 3), dtype, seed)
        host = room[::-2, 1 : columns + 1]
        with on_device(device, np.zeros(room.shape, dtype), order) as tile:
            device.upload(host, tile[rows:, 3:])
            back = np.zeros(host.shape, dtype, order="F" if turned else "C")
            device.download(tile[rows:, 3:], back)
            np.testing.assert_array_equal(comparable(back), comparable(host))
            assert not fetched(device, tile[:rows], dtype).any()

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_lends_host_memory_that_is_sent_and_filled_as_it_lies(self, order: tuple[int, int]) -> None:
        """Devices that lend any: upload leaves from it, a download that was begun ends in it."""
        device, dtype = self.make_device(), np.dtype(np.float32)
        if not device.lends(dtype, dtype):
            assert device.lent_bytes == 0
            return
        host = random_values((60, 50), dtype, 7)
        with on_device(device, np.zeros((60, 60), dtype), order) as tile:
            for part in (tile[:, :50], tile[:, 10:]):
                memory = device.lend_host()
                assert memory is not None
                assert memory.nbytes == device.lent_bytes
                lying = memory[: host.nbytes].view(dtype).reshape([host.shape[axis] for axis in order])
                piece = lying.transpose(np.argsort(order))
                piece[...] = host
                device.upload(piece, part)
                device.take_back(memory)
                memory = device.lend_host()
                assert memory is not None
                lying = memory[: host.nbytes].view(dtype).reshape([host.shape[axis] for axis in order])
                device.begin_download(part, lying.transpose(np.argsort(order)))()
                np.testing.assert_array_equal(lying.transpose(np.argsort(order)), host)
                device.take_back(memory)

    def test_moves_more_than_it_moves_at_once(self) -> None:
        """Arrays larger than any transfer buffer arrive whole, turned or not."""
        device = self.make_device()
        host = random_values((1500, 1201), np.dtype(np.float32), 5)
        for order in ((0, 1), (1, 0)):
            with on_device(device, host, order) as tile:
                np.testing.assert_array_equal(fetched(device, tile, host.dtype), host)

    @pytest.mark.parametrize("half", HALVES, ids=str)
    def test_converts_half_types_both_ways(self, half: np.dtype[Any]) -> None:
        """Into float32 exactly; back by rounding to nearest even."""
        device = self.make_device()
        host = random_values((65, 40), half, 3)
        with on_device(device, np.zeros(host.shape, np.float32), (1, 0)) as tile:
            device.upload(host, tile)
            np.testing.assert_array_equal(
                fetched(device, tile, np.dtype(np.float32)), host.astype(np.float32)
            )
            exact = random_values(host.shape, np.dtype(np.float32), 4)
            device.upload(exact, tile)
            np.testing.assert_array_equal(
                comparable(fetched(device, tile, half)), comparable(exact.astype(half))
            )

    def test_refuses_conversions_that_lose_more_than_precision(self) -> None:
        """A fraction or an imaginary part is not dropped in silence."""
        device = self.make_device()
        with on_device(device, np.zeros(4, np.float32), (0,)) as tile:
            with pytest.raises(DTypeError, match="upload"):
                device.upload(np.zeros(4, np.complex64), tile)
            with pytest.raises(DTypeError, match="download"):
                device.download(tile, np.zeros(4, np.int32))

    def test_refuses_transfers_between_different_shapes(self) -> None:
        """Nothing broadcasts on the way."""
        device = self.make_device()
        with on_device(device, np.zeros((2, 3), np.float32), (0, 1)) as tile:
            with pytest.raises(ShapeError, match="upload"):
                device.upload(np.zeros((3,), np.float32), tile)
            with pytest.raises(ShapeError, match="download"):
                device.download(tile, np.zeros((3, 2), np.float32))

    @_inherited
    @given(st.data())
    def test_multiplies_as_float64_does(self, data: st.DataObject) -> None:
        """Any order of each, slices, accumulation and conjugation, beside NumPy's wider types."""
        dtype = data.draw(st.sampled_from(FLOATING))
        m, k, n = (data.draw(_length) for _ in "mkn")
        orders = [data.draw(_order) for _ in range(3)]
        accumulate, conjugate, seed = data.draw(st.booleans()), data.draw(st.booleans()), data.draw(_seed)
        a, b, c = (
            random_values(shape, dtype, seed + i) for i, shape in enumerate([(m, k + 2), (k, n), (m, n)])
        )
        device = self.make_device()
        with contextlib.ExitStack() as held:
            x, y, z = (
                held.enter_context(on_device(device, h, o)) for h, o in zip((a, b, c), orders, strict=True)
            )
            device.gemm(x[:, 1 : k + 1], y, z, accumulate=accumulate, conjugate_a=conjugate)
            a = np.conj(a[:, 1 : k + 1]) if conjugate else a[:, 1 : k + 1]
            assert_close(fetched(device, z, dtype), a, b, c if accumulate else None)

    @_inherited
    @given(st.data())
    def test_broadcasts_batches(self, data: st.DataObject) -> None:
        """Batch axes of any order and of length one."""
        dtype = data.draw(st.sampled_from(FLOATING))
        batch = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
        m, k, n, seed = (data.draw(st.integers(1, 6)) for _ in range(4))
        cut = [data.draw(st.booleans()) for _ in batch]
        shapes = [
            (*(1 if c else e for c, e in zip(cut, batch, strict=True)), m, k),
            (*batch[len(batch) // 2 :], k, n),
            (
                *np.broadcast_shapes(
                    *[[1 if c else e for c, e in zip(cut, batch, strict=True)], batch[len(batch) // 2 :]]
                ),
                m,
                n,
            ),
        ]
        device = self.make_device()
        with contextlib.ExitStack() as held:
            hosts = [random_values(shape, dtype, seed + i) for i, shape in enumerate(shapes)]
            orders = [tuple(data.draw(st.permutations(range(len(shape))))) for shape in shapes]
            x, y, z = (
                held.enter_context(on_device(device, h, o)) for h, o in zip(hosts, orders, strict=True)
            )
            device.gemm(x, y, z, accumulate=True)
            assert_close(fetched(device, z, dtype), *hosts)

    @pytest.mark.parametrize("dtype", FLOATING, ids=str)
    def test_takes_strided_operands(self, dtype: np.dtype[Any]) -> None:
        """Tiles of which every second row and column counts, read and written."""
        device = self.make_device()
        a, b, c = (random_values((2 * r, 2 * s), dtype, r) for r, s in ((20, 30), (30, 10), (20, 10)))
        with (
            on_device(device, a, (0, 1)) as x,
            on_device(device, b, (1, 0)) as y,
            on_device(device, c, (0, 1)) as z,
        ):
            for each in (x, y, z):
                assert isinstance(device.can_take(each[::2, ::2]), bool)
            device.gemm(x[::2, ::2], y[::2, ::2], z[::2, ::2], accumulate=True)
            found = fetched(device, z, dtype)
        assert_close(found[::2, ::2], a[::2, ::2], b[::2, ::2], c[::2, ::2])
        np.testing.assert_array_equal(found[1::2], c[1::2])
        np.testing.assert_array_equal(found[:, 1::2], c[:, 1::2])

    @pytest.mark.parametrize("dtype", FLOATING, ids=str)
    def test_never_reads_a_result_it_overwrites(self, dtype: np.dtype[Any]) -> None:
        """NaN in C stays out of the product; NaN and Inf in A and B come through."""
        device = self.make_device()
        a, b = random_values((3, 4), dtype, 1), random_values((4, 5), dtype, 2)
        with contextlib.ExitStack() as held:
            c = np.full((3, 5), np.nan, dtype)
            x, y, z = (held.enter_context(on_device(device, host, (0, 1))) for host in (a, b, c))
            device.gemm(x, y, z, accumulate=False)
            assert_close(fetched(device, z, dtype), a, b, None)
            a[1, 2] = np.nan
            device.upload(a, x)
            device.gemm(x, y, z, accumulate=True)
            rows_with_nan = np.isnan(fetched(device, z, dtype)).any(axis=1)
        assert rows_with_nan.tolist() == [False, True, False]

    @pytest.mark.parametrize(("m", "k", "n"), [(0, 3, 2), (3, 0, 2), (3, 2, 0)])
    def test_empty_products(self, m: int, k: int, n: int) -> None:
        """No terms sum to zero; nothing is added to what accumulates."""
        device = self.make_device()
        c = np.ones((m, n), np.float32)
        with contextlib.ExitStack() as held:
            hosts = np.ones((m, k), np.float32), np.ones((k, n), np.float32), c
            x, y, z = (held.enter_context(on_device(device, host, (0, 1))) for host in hosts)
            device.gemm(x, y, z, accumulate=True)
            np.testing.assert_array_equal(fetched(device, z, c.dtype), c)
            device.gemm(x, y, z, accumulate=False)
            assert not fetched(device, z, c.dtype).any()

    @pytest.mark.parametrize("dtype", INTEGERS, ids=str)
    def test_integers_wrap_around(self, dtype: np.dtype[Any]) -> None:
        """As NumPy's do; a device without integer products says so."""
        device = self.make_device()
        a, b, c = (random_bits(shape, dtype, i) for i, shape in enumerate([(7, 40), (40, 9), (7, 9)]))
        with contextlib.ExitStack() as held:
            x, y, z = (
                held.enter_context(on_device(device, h, o))
                for h, o in ((a, (1, 0)), (b, (0, 1)), (c, (1, 0)))
            )
            assert device.multiplies(dtype) is self.integers
            if not self.integers:
                with pytest.raises(DTypeError, match="gemm"):
                    device.gemm(x, y, z, accumulate=True)
                return
            device.gemm(x, y, z, accumulate=True)
            np.testing.assert_array_equal(fetched(device, z, dtype), a @ b + c)

    @pytest.mark.parametrize("half", HALVES, ids=str)
    def test_half_types_are_summed_in_float32(self, half: np.dtype[Any]) -> None:
        """Where the device multiplies them; others say so, and factors of two types are refused."""
        device = self.make_device()
        a, b = random_values((70, 3000), half, 1), random_values((3000, 50), half, 2)
        start = random_values((70, 50), np.dtype(np.float32), 3)
        with contextlib.ExitStack() as held:
            x, y, z, g, other = (
                held.enter_context(on_device(device, host, order))
                for host, order in (
                    (a, (1, 0)),
                    (b, (0, 1)),
                    (start, (0, 1)),
                    (np.zeros((70, 70), np.float32), (0, 1)),
                    (np.zeros((3000, 50), np.float32), (0, 1)),
                )
            )
            if not device.multiplies(half):
                with pytest.raises(DTypeError, match="gemm"):
                    device.gemm(x, y, z, accumulate=True)
                return
            device.gemm(x, y, z, accumulate=True)
            wide = a.astype(np.float32), b.astype(np.float32)
            assert_close(fetched(device, z, start.dtype), *wide, start)
            device.gemm(x[::2], y[:, ::2], z[:35, :25], accumulate=False)
            assert_close(fetched(device, z[:35, :25], start.dtype), wide[0][::2], wide[1][:, ::2], None)
            device.gram(x.swapaxes(-1, -2), g, accumulate=False)
            device.symmetrize(g)
            assert_close(fetched(device, g, start.dtype), wide[0], wide[0].T, None)
            with pytest.raises(DTypeError, match="gemm"):
                device.gemm(x, other, z, accumulate=False)

    def test_refuses_products_that_do_not_fit(self) -> None:
        """Shapes and element types are checked before anything is computed."""
        device = self.make_device()
        with contextlib.ExitStack() as held:
            hosts = np.zeros((2, 3), np.float32), np.zeros((3, 4), np.float32), np.zeros((3, 4), np.float64)
            x, y, wide = (held.enter_context(on_device(device, host, (0, 1))) for host in hosts)
            with pytest.raises(ShapeError, match="gemm"):
                device.gemm(x, x, y, accumulate=False)
            with pytest.raises(ShapeError, match="gram"):
                device.gram(x, y, accumulate=False)
            with pytest.raises(ShapeError, match="symmetrize"):
                device.symmetrize(x)
            with pytest.raises(DTypeError, match="gemm"):
                device.gemm(x, y, wide[:2], accumulate=False)

    @_inherited
    @given(st.sampled_from(FLOATING), _order, _order, _length, _length, st.booleans(), _seed)
    def test_gram_is_the_hermitian_square(
        self,
        dtype: np.dtype[Any],
        a_order: tuple[int, ...],
        c_order: tuple[int, ...],
        k: int,
        n: int,
        accumulate: bool,
        seed: int,
    ) -> None:
        """The upper triangle of AᴴA, and after ``symmetrize`` the lower one, its conjugate."""
        device = self.make_device()
        a = random_values((k, n), dtype, seed)
        half = random_values((n, n), dtype, seed + 1)
        c = half + np.conj(half.T)
        with on_device(device, a, a_order) as x, on_device(device, c, c_order) as z:
            device.gram(x, z, accumulate=accumulate)
            assert_close(
                np.triu(fetched(device, z, dtype)), np.conj(a.T), a, c if accumulate else None, np.triu
            )
            device.symmetrize(z)
            whole = fetched(device, z, dtype)
        assert_close(whole, np.conj(a.T), a, c if accumulate else None)
        np.testing.assert_array_equal(np.tril(whole, -1), np.conj(np.triu(whole, 1).T))

    def test_gram_of_batches_and_integers(self) -> None:
        """Batch axes are kept; integers wrap around."""
        device = self.make_device()
        dtype = np.dtype(np.int32 if self.integers else np.float64)
        a = np.arange(2 * 3 * 150, dtype=dtype).reshape(2, 3, 150)
        with (
            on_device(device, a, (0, 1, 2)) as x,
            on_device(device, np.zeros((2, 150, 150), dtype), (0, 2, 1)) as z,
        ):
            device.gram(x, z, accumulate=False)
            device.symmetrize(z)
            np.testing.assert_array_equal(fetched(device, z, dtype), a.swapaxes(1, 2) @ a)

    def test_serves_several_threads(self) -> None:
        """Readers fill tiles while others are multiplied."""
        device = self.make_device()

        def work(seed: int) -> None:
            a, b = (random_values((50, 50), np.dtype(np.float64), seed + i) for i in (0, 1))
            zero = np.zeros((50, 50))
            for _ in range(5):
                with contextlib.ExitStack() as held:
                    x, y, z = (held.enter_context(on_device(device, host, (0, 1))) for host in (a, b, zero))
                    device.gemm(x, y, z, accumulate=False)
                    assert_close(fetched(device, z, a.dtype), a, b, None)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(8)))
        device.synchronize()
        device.empty_cache()


@contextlib.contextmanager
def on_device(device: Device, host: Array, order: tuple[int, ...]) -> Iterator[Any]:
    """Hold a copy of ``host`` on ``device`` with its axes in ``order``, slowest first."""
    with _memory(device, host.nbytes) as buffer:
        view = device.view(buffer, host.shape, host.dtype, order)
        device.upload(host, view)
        yield view


def fetched(device: Device, view: Any, dtype: np.dtype[Any]) -> Array:
    """Return a host copy of a device array, converted to ``dtype``."""
    host = np.empty(tuple(view.shape), dtype)
    device.download(view, host)
    return host


def random_values(shape: tuple[int, ...], dtype: np.dtype[Any], seed: int) -> Array:
    """Return normally distributed numbers; both parts for complex types."""
    rng = np.random.default_rng(seed)
    values: Array = rng.standard_normal(shape)
    if dtype.kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return np.asarray(values).astype(dtype)


def random_bits(shape: tuple[int, ...], dtype: np.dtype[Any], seed: int) -> Array:
    """Return any bits whatever, NaN and infinities among them."""
    count = int(np.prod(shape)) * dtype.itemsize
    bits: Array = np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)
    return bits.view(dtype).reshape(shape)


def comparable(array: Array) -> Array:
    """Return ``array`` in a type that NumPy compares; NaN of any payload is one and the same."""
    if array.dtype.kind in "iub":
        return np.ascontiguousarray(array)
    with np.errstate(invalid="ignore"):
        return np.ascontiguousarray(array, np.complex128 if array.dtype.kind == "c" else np.float64)


def assert_close(found: Array, a: Array, b: Array, c: Array | None, part: Any = lambda x: x) -> None:
    """Compare with ``part(a @ b + c)`` in double precision, within the error of a sum of k products."""
    wide = np.complex128 if found.dtype.kind == "c" else np.float64
    exact = a.astype(wide) @ b.astype(wide)
    bound = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
    if c is not None:
        exact, bound = exact + c, bound + np.abs(c)
    error = 4 * (a.shape[-1] + 2) * np.finfo(found.dtype).eps
    assert (np.abs(found - part(exact)) <= error * bound).all()


@contextlib.contextmanager
def _memory(device: Device, nbytes: int) -> Iterator[Any]:
    buffer = device.allocate(nbytes)
    try:
        yield buffer
    finally:
        device.release(buffer)
