"""The most that this device can do, measured: products at the model's shapes, memory bandwidth, launches.

The numbers are medians of several repeats after a warm-up. On a GPU, device events time each repeat, and the
host enqueues all repeats behind a short sleep, so that no gap between launches is counted. The number of
repeats and the tokens of a product depend on the device: all measurements take a few seconds on a GPU, and a
fraction of one on a CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median, quantiles

import torch
from torch import Tensor

from model.measure.floor import passes, shapes, tokens_at_once
from model.measure.profiler import wait
from model.record.config import RunConfig
from model.record.speed import Ceilings, LoadClocks, Pass, ProductTiming, Timing

_MOST_FLOP = {"cuda": 5e12, "cpu": 1e8}  # per call; more tokens hardly change the rate
_ARRAY_BYTES = {"cuda": 2**29, "cpu": 2**25}  # far more than a GPU's cache, and more than most CPUs' caches
_BUDGET_SECONDS = {"cuda": 0.06, "cpu": 0.01}  # for the repeats of one measurement
_WARM_SECONDS = {"cuda": 0.3, "cpu": 0.0}
_FEWEST, _MOST = 5, 30  # repeats
_LAUNCHES = 1000  # a repeat
_LOAD_SECONDS = 0.6  # while nvidia-smi answers
_SLEEP_CYCLES = 20_000_000  # some 10 ms of the device, longer than it takes to enqueue all repeats
_EIGHT = 8  # tensor cores need multiples of it
_MOST_WEIGHTS = {"cuda": 2**40, "cpu": 2**20}  # of a product: to fill a large weight takes a CPU seconds


def measure(config: RunConfig, watch: Callable[[], LoadClocks | None]) -> Ceilings:
    """Measure the device of a run, at the shapes of its products.

    Args:
        watch: asks for the clocks; called while a GPU is busy, and not on a CPU.

    Raises:
        torch.OutOfMemoryError: others use the device's memory.
    """
    wanted = shapes(config.model, config.parallel.tensor)
    timed = [_product(config, step, *shape) for shape in wanted for step in passes(config)]
    size, traffic = _traffic(config.device)
    return Ceilings(
        products=timed,
        traffic_bytes=size,
        traffic=traffic,
        launch=_launch(config.device),
        clocks=_under_load(config, watch) if config.device == "cuda" else None,
    )


def _product(config: RunConfig, step: Pass, inputs: int, outputs: int) -> ProductTiming:
    """Time one product in the layout that autograd gives it."""
    columns = max(1, min(outputs, _MOST_WEIGHTS[config.device] // inputs))
    most = int(_MOST_FLOP[config.device] / (2 * inputs * columns))
    count = min(tokens_at_once(config), max(_EIGHT, most - most % _EIGHT))
    timing = _timed(config.device, _work(config, step, count, inputs, columns))
    return ProductTiming(
        step=step, inputs=inputs, outputs=outputs, tokens=count, columns=columns, timing=timing
    )


def _work(config: RunConfig, step: Pass, count: int, inputs: int, outputs: int) -> Callable[[], Tensor]:
    """The product on random numbers: on zeros, a GPU draws less power and keeps a higher clock."""
    how = {"device": config.device, "dtype": getattr(torch, config.section.dtype)}
    x_NI, weight_OI, gradient_NO = (
        torch.randn(shape, **how) for shape in ((count, inputs), (outputs, inputs), (count, outputs))
    )
    if step == "forward":
        return lambda: x_NI @ weight_OI.T
    if step == "input":
        return lambda: gradient_NO @ weight_OI
    return lambda: gradient_NO.T @ x_NI


def _traffic(device: str) -> tuple[int, Timing]:
    """Bytes that c = a + b reads and writes, and how long it takes. The arrays are freed at its end."""
    a, b, c = (torch.ones(_ARRAY_BYTES[device] // 4, device=device) for _ in range(3))
    return 3 * a.numel() * a.element_size(), _timed(device, lambda: torch.add(a, b, out=c))


def _launch(device: str) -> Timing:
    """Time from one launch to the next, in a row of launches with hardly any work."""
    one = torch.zeros(1, device=device)

    def row() -> None:
        for _ in range(_LAUNCHES):
            one.add_(1)
        wait(device)

    row()
    repeats = [_seconds(row) / _LAUNCHES for _ in range(_FEWEST)]
    return _timing(repeats)


def _under_load(config: RunConfig, watch: Callable[[], LoadClocks | None]) -> LoadClocks | None:
    """Ask for the clocks while the device works through what was enqueued."""
    work = _work(
        config, "forward", min(tokens_at_once(config), 8192), *shapes(config.model, config.parallel.tensor)[0]
    )
    for _ in range(max(1, int(_LOAD_SECONDS / _once("cuda", work)))):
        work()
    clocks = watch()
    wait("cuda")
    return clocks


def _timed(device: str, work: Callable[[], Tensor]) -> Timing:
    """The times of single calls, as many as fit into the budget."""
    once = _once(device, work)
    if device not in _warmed:  # keep an idle GPU busy until its clocks are those of a busy one
        for _ in range(int(_WARM_SECONDS[device] / once)):
            work()
        wait(device)
        _warmed.add(device)
    repeats = int(min(_MOST, max(_FEWEST, _BUDGET_SECONDS[device] / once)))
    if device == "cpu":
        return _timing([_seconds(work) for _ in range(repeats)])
    # PyTorch leaves these unannotated.
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]  # type: ignore[no-untyped-call]
    torch.cuda._sleep(_SLEEP_CYCLES)  # type: ignore[no-untyped-call]
    for start, end in marks:
        start.record()
        work()
        end.record()
    wait(device)
    return _timing([start.elapsed_time(end) / 1e3 for start, end in marks])


_warmed = set[str]()


def _once(device: str, work: Callable[[], Tensor]) -> float:
    """Rough seconds of a call, after a first one in which things are loaded or chosen."""
    work()
    wait(device)

    def call() -> None:
        work()
        wait(device)

    return min(_seconds(call) for _ in range(2))


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _timing(seconds: list[float]) -> Timing:
    low, _, high = quantiles(seconds, n=4, method="inclusive")
    return Timing(seconds=median(seconds), seconds_25=low, seconds_75=high, repeats=len(seconds))
