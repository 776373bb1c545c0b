"""Log lines of seed 002, and those of streams."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from accelera.execution.hardware.capabilities import HardwareCapabilities
from accelera.execution.strategy.strategy import SMALL_TASK_COUNT, Decision, StrategyKind

if TYPE_CHECKING:
    from accelera.execution.result import ExecutionResult, StreamReport


_LOGGER = logging.getLogger("accelera.execution")


def is_logged() -> bool:
    """Return whether anybody reads how batches begin and end."""
    return _LOGGER.isEnabledFor(logging.INFO)


def log_hardware(has_gpu: Callable[[], bool] | None = None) -> None:
    """Say what there is; looked for only where somebody listens.

    ``has_gpu`` tells whether a manager's own GPU can be used; None: it has none, and the machine's is logged.
    """
    if is_logged():
        hardware = HardwareCapabilities.detect()
        available = hardware.gpu_available if has_gpu is None else has_gpu()
        _LOGGER.info(
            "Hardware detection: %d CPU cores, GPU available: %s", hardware.cpu_cores, _word(available)
        )


def log_begin(task_count: int, decision: Decision) -> None:
    """Say what is about to be done, and why."""
    if not is_logged():
        return
    chosen = decision.rule != "given" and decision.strategy.kind is StrategyKind.CPU_ONLY
    if chosen and task_count < SMALL_TASK_COUNT:
        _LOGGER.debug("Small workload detected, CPU-only will be faster")
    _log_reasons(decision)
    _LOGGER.info("Executing %d tasks with strategy: %s", task_count, decision.strategy)


def log_stream(decision: Decision) -> None:
    """Say that a stream begins, and why it runs there."""
    if is_logged():
        _log_reasons(decision)
        _LOGGER.info("Executing a stream with strategy: %s", decision.strategy)


def log_stream_end(report: StreamReport) -> None:
    """Say how it went."""
    if not is_logged():
        return
    if report.error is not None:
        log_failed(report.execution_time, report.error, report.fallback_occurred)
    else:
        log_end(report)
        _LOGGER.info("Stream %s after %d tasks", report.ended_by, report.task_count)


def log_end(result: ExecutionResult[Any] | StreamReport) -> None:
    """Say how it went."""
    if is_logged():
        stopped_by = getattr(result, "stopped_by", None)
        _LOGGER.info(
            "Execution %s in %.1fms (fallback: %s)",
            f"ended early ({stopped_by})" if stopped_by else "completed",
            1e3 * result.execution_time,
            _word(result.fallback_occurred),
        )


def log_failed(seconds: float, error: BaseException, fallback_occurred: bool) -> None:
    """Say that a batch or stream ended with an exception."""
    if is_logged():
        kind, fallback = type(error).__name__, _word(fallback_occurred)
        _LOGGER.info("Execution failed in %.1fms (fallback: %s): %s", 1e3 * seconds, fallback, kind)


def log_fallback(error: BaseException, *, hybrid: bool, again: bool) -> None:
    """Say that the CPU takes over; what a batch has said ``again`` only where details are wanted."""
    text = (
        "Hybrid execution failed: %s, CPU-only fallback"
        if hybrid
        else "GPU execution failed: %s, falling back to CPU"
    )
    _LOGGER.log(logging.DEBUG if again else logging.WARNING, text, error)


def _log_reasons(decision: Decision) -> None:
    for reason in decision.reasons:
        _LOGGER.debug("%s: %s", decision.rule, reason)


def _word(value: bool) -> str:
    return "true" if value else "false"
