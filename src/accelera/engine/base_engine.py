"""Base of the engines: settings, and products of matrices by the route that fits."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, overload

from accelera._extras import is_loaded
from accelera._logs import configure_logging, logger
from accelera.chunking import AdaptiveChunking, ChunkingStrategy, RowChunking
from accelera.chunking._internal import create_chunking_strategy
from accelera.devices import Device, get_device
from accelera.engine.distributed import TEN_GIGABIT_BYTES_PER_S, DistributedMatmul, executor_on
from accelera.engine.expression import Expr
from accelera.engine.expression import matmul as lazy_matmul
from accelera.engine.expression_stores import of_one_type
from accelera.engine.hybrid import HybridDevices, HybridMatmul, hybrid_job
from accelera.engine.job import PlannedJob, carry_out
from accelera.engine.matmul import PlannedMatmul, result_tiles, spans_of
from accelera.engine.operands import file_result, lies_in_store, matmul_shape, multiplier, open_operand
from accelera.engine.operations import Operations, result_matrix
from accelera.engine.options import (
    USUAL_WINDOW,
    Amount,
    Destination,
    MatmulKeywords,
    OperationKeywords,
    OperationOptions,
    PressureWatch,
    budget_for,
    eviction_of,
)
from accelera.engine.registry import unwrapped
from accelera.engine.report import RunObserver, RunReport, progress_observer
from accelera.engine.routing import GIB, LEAST_DEVICE_BYTES, NOT_IN_MEMORY, Route, RouteFacts
from accelera.engine.sparse import SparseMatmul, sparse_product
from accelera.errors import ArgumentError, BudgetExceededError, DeviceMemoryError, ShapeError, StateError
from accelera.memory import Hierarchy, MemoryManager, Tier
from accelera.memory._internal import ALWAYS_FITS_BYTES, UNBOUNDED_BYTES, Budget
from accelera.plan import Plan
from accelera.plan._internal import Eviction, Objective, PolicyMaker, SavedPlan, as_saved
from accelera.settings import current_value
from accelera.stores import Store
from accelera.stores._internal import is_sparse
from accelera.trace._internal import Recorder
from accelera.units import format_bytes, parse_limit

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from accelera.engine.incore import ProductPair
    from accelera.engine.matrix import Matrix
    from accelera.execution import RayExecutor
    from accelera.simulator import Advice


Operand = Any
"""A Matrix, tensor, array or list in memory; a path; or a store."""
Strategy = str | ChunkingStrategy
Policy = str | PolicyMaker
"""A name of ``accelera.policy.POLICIES``, or what makes a policy of your own from its ``Knowledge``."""

DEFAULT_CHUNK_SIZE = 1024
"""Rows of a chunk where sizes are fixed and none is given."""


@dataclass(frozen=True)
class MatmulRequest:
    """One planned product, as the caller asked for it."""

    a: Operand
    b: Operand
    out: Any
    strategy: ChunkingStrategy
    fixed: bool
    """Whether ``strategy`` fixes the chunks of the result."""
    budget: Amount | None
    """As the caller gave it: its bytes depend on the device that computes."""
    options: OperationOptions


class BaseEngine(Operations):
    """Computes with matrices within a memory budget; subclasses choose the route."""

    def __init__(
        self,
        device: str | Device | None,
        auto_detect_memory: bool,
        chunking_strategy: Strategy,
        chunk_size: int | None,
        enable_progress: bool,
        budget: Amount | None,
        policy: Policy | None = None,
        advice: Advice | None = None,
    ) -> None:
        configure_logging()
        self.device = device if isinstance(device, Device) else get_device(device)
        """The device that computes."""
        self.memory_manager = MemoryManager(self.device)
        """What the device has and what may be used of it."""
        self.auto_detect_memory = auto_detect_memory
        """Whether chunk sizes follow the memory; False: they are ``chunk_size``."""
        self.enable_progress = enable_progress
        """Whether long operations draw a bar on a terminal."""
        self.budget = budget
        self.eviction = Eviction()
        """Policy that evicts blocks when the pool is full."""
        self.window = USUAL_WINDOW
        """Steps under way at once where data is loaded ahead."""
        self.places: HybridDevices | None = None
        """Devices that share the products that go by a plan; None: the device makes them by itself."""
        self._last_report: RunReport | None = None
        self._fixed_size = DEFAULT_CHUNK_SIZE if chunk_size is None else _checked_size(chunk_size)
        self.chunking_strategy = chunking_strategy
        if advice is not None:
            self.follow(advice)
        if policy is not None:
            self.policy = policy
        total = format_bytes(self.memory_manager.get_total_memory())
        logger.info("%s computes on %s with %s", type(self).__name__, self.device.name, total)

    @property
    def budget(self) -> Amount | None:
        """Maximum memory that an operation may add; None: what the threshold leaves free.

        Raises ArgumentError when it is set to what is no size.
        """
        return self._budget

    @budget.setter
    def budget(self, budget: Amount | None) -> None:
        if budget is not None:
            parse_limit(type(self).__name__, budget, self.memory_manager.get_total_memory)
        self._budget = budget

    @property
    def last_report(self) -> RunReport:
        """Report of the latest operation that followed a plan.

        Raises StateError before the first one.
        """
        if self._last_report is None:
            raise StateError(
                "[last_report] this engine has not run a plan yet: operands that fit in memory are computed "
                "without one; use files, or out="
            )
        return self._last_report

    @property
    def chunking_strategy(self) -> ChunkingStrategy:
        """How results are cut: assign a name, used where chunks are needed, or a strategy, used always."""
        return self._strategy

    @chunking_strategy.setter
    def chunking_strategy(self, strategy: Strategy) -> None:
        self._strategy = self._resolve_strategy(strategy)
        self._strategy_is_given = isinstance(strategy, ChunkingStrategy)

    @property
    def policy(self) -> Policy:
        """Policy that evicts when memory is full: assign a name, or what makes one from its ``Knowledge``."""
        return self.eviction.policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        self.eviction = eviction_of(policy)

    def follow(self, advice: Advice) -> None:
        """Evict and load ahead from now on as ``advice`` says; raises TypeError for anything else."""
        from accelera.simulator import Advice as Kind

        if not isinstance(advice, Kind):
            raise ArgumentError(f"[engine] {advice!r} is no advice; give what accelera.advise returned")
        self.eviction, self.window = eviction_of(advice.policy), advice.lookahead + 1

    def advise(self, plan: Plan, **options: Any) -> Advice:
        """Return what ``accelera.advise`` says of a plan's accesses on this machine, before it is run.

        ``options`` go to ``accelera.advise``. ``follow`` makes the engine do so.
        """
        from accelera.simulator import advise

        return advise(plan.trace(), **{"hierarchy": _hierarchy_of(plan), **options})

    @property
    def chunk_size(self) -> int | None:
        """Rows per chunk in force; None while the engine chooses."""
        return None if self.auto_detect_memory else self._fixed_size

    def set_chunk_size(self, chunk_size: int) -> None:
        """Cut results into chunks of ``chunk_size`` rows from now on; turns automatic detection off."""
        self._fixed_size = _checked_size(chunk_size)
        self.auto_detect_memory = False

    def enable_auto_memory_detection(self, enabled: bool = True) -> None:
        """Choose chunk sizes from the memory there is, or go back to the fixed size."""
        self.auto_detect_memory = enabled

    def get_memory_info(self) -> dict[str, float]:
        """Return how full the device and the RAM are: see ``MemoryManager.get_memory_info``."""
        return self.memory_manager.get_memory_info()

    def cleanup(self) -> None:
        """Give memory that nothing uses any more back to the system."""
        self.memory_manager.cleanup()

    @overload
    def matmul(
        self,
        A: Operand,
        B: Operand,
        chunk_strategy: Strategy | None = None,
        *,
        out: None = None,
        **how: Unpack[MatmulKeywords],
    ) -> Matrix: ...
    @overload
    def matmul(
        self,
        A: Operand,
        B: Operand,
        chunk_strategy: Strategy | None = None,
        *,
        out: Destination,
        **how: Unpack[MatmulKeywords],
    ) -> Store: ...
    @overload
    def matmul(
        self,
        A: Operand,
        B: Operand,
        chunk_strategy: Strategy | None = None,
        *,
        out: Any,
        **how: Unpack[MatmulKeywords],
    ) -> Matrix | Store: ...
    def matmul(
        self,
        A: Operand,
        B: Operand,
        chunk_strategy: Strategy | None = None,
        *,
        out: Any = None,
        budget: Amount | None = None,
        resume: bool = False,
        objective: Objective = "time",
        observers: Sequence[RunObserver] = (),
        recorder: Recorder | None = None,
        cluster: Any = None,
        node_budget: Amount | None = None,
        plan: Plan | SavedPlan | str | PathLike[str] | None = None,
        chunks: Sequence[int] | None = None,
        codec: str | None = None,
    ) -> Matrix | Store:
        """Return ``A @ B``, for shapes by the rules of ``torch.matmul``.

        Parameters
        ----------
        A, B
            (…, m, k) and (…, k, n): in memory, on disk (a path), stores, or expressions. Different element
            types are promoted as in NumPy. One may be a sparse matrix of SciPy, CSR or CSC.
        chunk_strategy
            A name or a strategy, for this call only.
        out
            Where the result goes: a path, an array, a Matrix or a store. New memory by default.
        budget
            Most memory the operation may add, such as ``"512MiB"`` or ``0.5``.
        resume
            Finish an interrupted run that wrote to the same ``out``, if there is one.
        objective
            ``"time"``, or ``"bytes"`` to move as few as possible even if that takes longer.
        observers
            Told of the progress of a planned run.
        recorder
            Told of every access of a planned run.
        cluster
            ``"ray"``, a ``RayCluster`` or a ``RayExecutor``: blocks of the result are made by its nodes, on
            GPUs where it reserves them. A, B and ``out`` must be files that every node sees; nodes load what
            they need, nothing is sent.
        node_budget
            With ``cluster``: most memory a block may add on its node. By default ``budget``, which says
            nothing beside it, or this machine's.
        plan
            The plan to follow, made by ``plan`` for operands like these, or the path of one that
            ``Plan.save`` wrote. Its budget is the ``budget`` where none is given.
        chunks, codec
            Chunk shape and compression of a new Zarr array that the result goes to: ``(512, 512)`` and
            ``"zstd"``, ``"gzip"``, ``"blosc-lz4"``, with a level ``"zstd:9"``. By default chunks of at most
            4 MiB, not compressed.

        Returns
        -------
        Matrix | Store
            The store when ``out`` is a path or a store, else a Matrix, on A's device when it is new.

        Raises
        ------
        ShapeError, DTypeError
            The operands do not fit together.
        BudgetExceededError
            No plan fits, or not the one that was given; nothing was allocated.
        ValueError
            ``node_budget`` without ``cluster``, or a ``recorder`` with one; an expression or a sparse matrix
            with ``cluster``; an expression with ``chunk_strategy``.
        TypeError
            ``cluster`` is none.
        StoreError
            An operand or the result of a product on a cluster is in no file.
        ClusterError
            No cluster answers.
        """
        if cluster is None:
            _check_no_nodes(node_budget)
        else:
            _check_dense_files(A, B, cluster)
        strategy, fixed = self._strategy_for(chunk_strategy)
        out, pinned = file_result(out, chunks, codec), as_saved(plan)
        budget = budget_for(budget, pinned)
        if isinstance(A, Expr) or isinstance(B, Expr):
            _check_no_strategy(chunk_strategy)
            how: OperationKeywords = {
                "budget": budget,
                "resume": resume,
                "observers": observers,
                "recorder": recorder,
                "plan": pinned,
            }
            found: Matrix | Store = self._run_expression("matmul", lazy_matmul(A, B), out, how, A, objective)
            return found
        sparse = is_sparse(A) or is_sparse(B)
        route = NOT_IN_MEMORY
        if not sparse and cluster is None:
            self._load_libraries(out)
            pair = None if out is not None or pinned is not None else self._pair_in_memory(A, B, budget)
            route = self._route(None if pair is None else self._route_facts(pair, fixed, budget))
            logger.debug("matmul: %s", route)
            product = None if pair is None or not route.direct else self._multiply_directly(pair, route)
            if product is not None:
                return product
        options = replace(
            self._defaults(),
            objective=objective,
            resume=resume,
            pinned=pinned,
            observers=observers,
            recorder=recorder,
        )
        request = MatmulRequest(A, B, out, strategy, fixed, budget, options)
        if sparse:
            return self._as_result(self._matmul_sparse(request), request)
        if cluster is not None:
            return self._matmul_on_cluster(request, cluster, node_budget)
        return self._matmul_by_plan(request, route)

    def plan(
        self,
        A: Operand,
        B: Operand,
        chunk_strategy: Strategy | None = None,
        *,
        out: Any = None,
        budget: Amount | None = None,
        objective: Objective = "time",
        chunks: Sequence[int] | None = None,
    ) -> Plan:
        """Return how ``matmul`` with the same arguments would run in chunks; nothing is read or allocated.

        ``Plan.explain()`` says it in words. Raises what ``matmul`` raises before it begins.
        """
        strategy, fixed = self._strategy_for(chunk_strategy)
        out = file_result(out, chunks, None)
        if isinstance(A, Expr) or isinstance(B, Expr):
            _check_no_strategy(chunk_strategy)
            return self._plan_expression("matmul", lazy_matmul(A, B), unwrapped(out), budget, objective)
        options = replace(self._defaults(), objective=objective)
        request = MatmulRequest(A, B, out, strategy, fixed, budget, options)
        if is_sparse(A) or is_sparse(B):
            return self._sparse_product(request).plan(get_device("cpu"))
        route = self._route(None)
        product, device, _ = self._product_and_device(request, route)
        if self.places is None or device is not self.device or product.problem(device).is_empty:
            return product.plan(device)
        cpu = get_device("cpu")
        return HybridMatmul(self._product(request, route, cpu), self.places).plan(cpu)

    def plan_cluster(
        self,
        A: Operand,
        B: Operand,
        *,
        out: Any = None,
        nodes: int = 2,
        node_budget: Amount | None = None,
        network_bytes_per_s: float = TEN_GIGABIT_BYTES_PER_S,
    ) -> Plan:
        """Return how ``matmul`` with ``cluster`` would run on ``nodes`` nodes like this machine.

        ``explain()`` says whether the network feeds them, and promises no speed-up where it does not. Nothing
        is read, and no cluster is needed. Raises what ``matmul`` raises before it begins.
        """
        request = MatmulRequest(A, B, out, self._strategy, False, None, self._defaults())
        return self._distributed_product(request, node_budget, nodes, None, network_bytes_per_s).plan(
            get_device("cpu")
        )

    def __repr__(self) -> str:
        sizes = "automatic" if self.auto_detect_memory else self._fixed_size
        strategy = type(self._strategy).__name__
        return f"{type(self).__name__}(device={self.device.name!r}, strategy={strategy}, chunk_size={sizes})"

    @abc.abstractmethod
    def _route(self, facts: RouteFacts | None) -> Route:
        """Return how a product is computed; None stands for operands that are not in memory."""

    def _pair_in_memory(self, A: Operand, B: Operand, budget: Amount | None) -> ProductPair | None:
        """Return the operands as tensors, None when one is a store.

        None also within a budget when an operand is a mapped file, or when torch would have to be loaded.
        """
        is_budgeted = budget is not None or self.budget is not None
        if lies_in_store(A) or lies_in_store(B) or (is_budgeted and not is_loaded("torch")):
            return None
        from accelera.engine import incore

        pair = incore.ProductPair.of(A, B)
        return None if is_budgeted and pair is not None and pair.is_mapped else pair

    def _multiply_directly(self, pair: ProductPair, route: Route) -> Matrix | None:
        """Return the product computed in one piece; None where that is not wanted, or memory runs out."""
        name = "cpu" if route.on_cpu else self.device.name
        if not pair.suits_torch(pair.place(name)) or (self.places is not None and self.places.always):
            return None
        try:
            return pair.product(name)
        except DeviceMemoryError as error:
            logger.warning("matmul goes on in chunks: %s", error)
            return None

    def _route_facts(self, pair: ProductPair, fixed: bool, budget: Amount | None) -> RouteFacts:
        place = pair.place(self.device.name)
        return RouteFacts(
            total_bytes=pair.total_bytes,
            needed_bytes=pair.added_bytes(place),
            has_room=partial(self._has_room, budget),
            device_is_full=self._device_is_full,
            chunks_wanted=fixed and not pair.is_empty,
            suits_torch=pair.suits_torch(place),
        )

    def _device_is_full(self) -> bool:
        if self.device.host_memory or self.device.total_bytes() < LEAST_DEVICE_BYTES:
            return False
        return self.device.available_bytes() < LEAST_DEVICE_BYTES

    def _has_room(self, budget: Amount | None, needed_bytes: int) -> bool:
        amount = self.budget if budget is None else budget
        if amount is None and needed_bytes > ALWAYS_FITS_BYTES:
            amount = current_value("budget")
        if amount is not None and needed_bytes > Budget.parse(amount, self.memory_manager).limit_bytes:
            return False
        return self.memory_manager.can_allocate(needed_bytes)

    def _elementwise(self, op: str, A: Operand, B: Operand) -> Matrix:
        from accelera.engine import incore

        pair = incore.ElementPair.of(op, A, B)
        if not self._has_room(None, pair.result_bytes):
            limit = Budget.parse(self.budget, self.memory_manager)
            limit.require(pair.result_bytes, op, f"the result of shape {pair.shape}")
        return pair.combined()

    def _matmul_by_plan(self, request: MatmulRequest, route: Route) -> Matrix | Store:
        cpu = get_device("cpu")
        product, device, notes = self._product_and_device(request, route)
        shared = None
        if device is self.device:
            shared = hybrid_job(self._product(request, route, cpu), self.places)
        if shared is not None and request.options.recorder is not None:
            raise ArgumentError(
                "[matmul] recorder=: a recorder follows one pool, and a strategy has one on each device;"
                " record an engine without strategy"
            )
        final = shared is None and (device.host_memory or self._budget_of(request.budget, device).is_given)
        try:
            if shared is not None:
                store = self._run_job(shared, request, cpu)
            else:
                store = self._run_job(product.job(), request, device, *notes)
        except BudgetExceededError as error:
            if final:
                raise
            logger.warning("matmul is planned on the CPU: %s", error)
            job = self._product(request, route, cpu).job()
            store = self._run_job(job, request, cpu, f"planned on the CPU: {error}")
        return self._as_result(store, request)

    def _as_result(self, store: Store, request: MatmulRequest) -> Matrix | Store:
        return store if lies_in_store(request.out) else result_matrix(store, request.out, request.a)

    def _product_and_device(
        self, request: MatmulRequest, route: Route
    ) -> tuple[PlannedMatmul, Device, tuple[str, ...]]:
        """Return the product, the device that computes it, and why, where that is not the engine's device."""
        cpu = get_device("cpu")
        if route.on_cpu:
            return self._product(request, route, cpu), cpu, ()
        product = self._product(request, route, self.device)
        if multiplier(self.device, product.a.dtype) is self.device:
            return product, self.device, ()
        note = f"planned on the CPU: {self.device.name} multiplies no {product.a.dtype}"
        logger.debug("matmul is %s", note)
        return self._product(request, route, cpu), cpu, (note,)

    def _matmul_sparse(self, request: MatmulRequest) -> Store:
        return self._run_job(self._sparse_product(request).job(), request, get_device("cpu"))

    def _sparse_product(self, request: MatmulRequest) -> SparseMatmul:
        """Return the product of a sparse matrix and another operand, computed on the CPU."""
        options = request.options.within(self._budget_of(request.budget, get_device("cpu")).limit_bytes)
        return sparse_product(unwrapped(request.a), unwrapped(request.b), unwrapped(request.out), options)

    def _matmul_on_cluster(self, request: MatmulRequest, cluster: Any, node_budget: Amount | None) -> Store:
        if request.options.recorder is not None:
            raise ArgumentError(
                "[matmul] recorder=: a recorder follows one pool, and every node has one; leave it out"
            )
        cpu = get_device("cpu")
        with executor_on(cluster) as executor:
            nodes = max(1, len(executor.cluster.nodes()))
            job = self._distributed_product(request, node_budget, nodes, executor).job()
            return self._run_job(job, request, cpu)

    def _distributed_product(
        self,
        request: MatmulRequest,
        node_budget: Amount | None,
        nodes: int,
        executor: RayExecutor | None,
        network_bytes_per_s: float = TEN_GIGABIT_BYTES_PER_S,
    ) -> DistributedMatmul:
        cpu = get_device("cpu")
        product = self._product(replace(request, fixed=False), self._route(None), cpu)
        limit = self._budget_of(request.budget if node_budget is None else node_budget, cpu).limit_bytes
        return DistributedMatmul(product, limit, nodes, executor, network_bytes_per_s)

    def _run_job(self, job: PlannedJob, request: MatmulRequest, device: Device, *notes: str) -> Store:
        bar, options = progress_observer(self.enable_progress), request.options
        if bar is not None:
            options = replace(options, observers=(*options.observers, bar))
        if options.pinned is None:
            options = replace(options, adaptation=_pressure_watch(request.strategy, self._memory_of(device)))
        store, report = carry_out(job, device, options)
        self._last_report = replace(report, fallbacks=(*notes, *report.fallbacks))
        return store

    def _product(self, request: MatmulRequest, route: Route, device: Device) -> PlannedMatmul:
        a, b = of_one_type(open_operand(request.a), open_operand(request.b))
        budget = self._budget_of(request.budget, device)
        tiles = self._tiles(request, a, b, route.chunk_rows, budget.limit_bytes)
        options = request.options.within(budget.limit_bytes, None if budget.is_given else _free_ram_bytes())
        return PlannedMatmul(a, b, unwrapped(request.out), options, spans_of(tiles))

    def _memory_of(self, device: Device) -> MemoryManager:
        return self.memory_manager if device is self.device else MemoryManager(device)

    def _tiles(
        self, request: MatmulRequest, a: Store, b: Store, rows: int | None, budget_bytes: int
    ) -> list[tuple[slice, slice]] | None:
        """Return the chunks of the result where the strategy sets them; None lets the planner choose."""
        strategy = request.strategy
        if rows is None and not request.fixed and not isinstance(strategy, RowChunking):
            return None
        matmul_shape(a.shape, b.shape)
        left, right = (1, *a.shape)[-2:], (*b.shape, 1)[: max(2, b.ndim)]
        size = (
            rows
            or self.chunk_size
            or self.memory_manager.get_optimal_chunk_size(left, right, a.dtype, budget_bytes=budget_bytes)
        )
        return result_tiles(strategy if rows is None else RowChunking(), (left[0], right[-1]), size)

    def _strategy_for(self, chunk_strategy: Strategy | None) -> tuple[ChunkingStrategy, bool]:
        """Return the strategy of one call, and whether it fixes the chunks."""
        if chunk_strategy is None:
            return self._strategy, self._strategy_is_given or not self.auto_detect_memory
        given = isinstance(chunk_strategy, ChunkingStrategy)
        return self._resolve_strategy(chunk_strategy), given or not self.auto_detect_memory

    def _resolve_strategy(self, strategy: Strategy) -> ChunkingStrategy:
        if isinstance(strategy, str):
            strategy = create_chunking_strategy(strategy)
        if isinstance(strategy, AdaptiveChunking) and strategy.memory_manager is None:
            strategy.memory_manager = self.memory_manager
        return strategy


def gibibytes(threshold_gb: float) -> int:
    """Return a threshold in GiB as bytes; raises ArgumentError for anything but a valid number of GiB."""
    try:
        if isinstance(threshold_gb, (bool, str)):
            raise ArgumentError("it is no number")  # a text times GIB would be a text of gigabytes
        count = threshold_gb * GIB
        if not 0 <= count < 2**62:
            raise ArgumentError("it must be finite and not negative")
        return int(count)
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(
            f"[engine] memory_threshold_gb={threshold_gb!r}: {error}; give a number of GiB, such as 0.5"
        ) from error


def _check_no_nodes(node_budget: Amount | None) -> None:
    if node_budget is not None:
        raise ArgumentError(
            f"[matmul] node_budget={node_budget!r} without cluster=: it is for the nodes of one; give"
            f" cluster='ray' too, or budget= for this machine"
        )


def _check_dense_files(A: Operand, B: Operand, cluster: Any) -> None:
    for name, operand in (("A", A), ("B", B)):
        found = "an expression" if isinstance(operand, Expr) else "a sparse matrix"
        if isinstance(operand, Expr) or is_sparse(operand):
            raise ArgumentError(
                f"[matmul] cluster={cluster!r} takes two dense files, and {name} is {found}; write it to a"
                f" dense file first, or leave cluster= out to compute on this machine"
            )


def _check_no_strategy(chunk_strategy: Strategy | None) -> None:
    if chunk_strategy is not None:
        raise ArgumentError(
            f"[matmul] chunk_strategy={chunk_strategy!r} with an expression: its plan chooses the blocks of"
            f" every stage; leave it out, or evaluate the factors into files first"
        )


def _hierarchy_of(plan: Plan) -> Hierarchy:
    """Return the two tiers of a plan: the memory of its blocks, and the stores at their planned rates.

    Links count bytes as the pool holds them; reads and writes go on at once.
    """
    forecast = plan.forecast
    read = forecast.fetched_bytes / forecast.read_s if forecast.read_s else float("inf")
    write = forecast.saved_bytes / forecast.write_s if forecast.write_s else float("inf")
    stores = Tier("stores", UNBOUNDED_BYTES, read, write_bandwidth_bytes_per_s=write)
    return Hierarchy((Tier(plan.tier, plan.capacity_bytes, float("inf")), stores))


def _free_ram_bytes() -> int:
    return MemoryManager(get_device("cpu")).get_usable_memory()


def _pressure_watch(strategy: ChunkingStrategy, memory: MemoryManager) -> PressureWatch | None:
    return PressureWatch(strategy, memory) if isinstance(strategy, AdaptiveChunking) else None


def _checked_size(chunk_size: int) -> int:
    if chunk_size < 1:
        raise ShapeError(f"[engine] chunk_size={chunk_size} must be at least 1 row")
    return chunk_size
