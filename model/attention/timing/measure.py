"""Times backends side by side on one shape: in every round each is called once, in a random order.

Only the backend differs: in a round, all of them read the same new numbers, from cold caches, at the clocks
that the device has then. A large matrix product is timed between them, to show what the device can do. The
results of each backend's timed call are checked in one random round, except with dropout: which weights
became 0 is unknown, and the certificate alone vouches for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

import torch

from model.attention import Backend, Case, Fp8, _fp8
from model.attention.timing.check import checked
from model.attention.timing.device import CACHE_BYTES, PRODUCT_SIZE, Cpu, Cuda, Timed, device
from model.attention.timing.passes import Eager, Graphs, Passes, TimedInputs
from model.attention.verify.call import is_out_of_memory
from model.record.errors import Interrupted, Unsupported, one_line
from model.record.kernels import (
    DIRECTIONS,
    MODES,
    NO_BACKWARD,
    Direction,
    Ending,
    KernelCheck,
    KernelTime,
    Mode,
    directions,
)

WARM_UP = 2  # calls before the first that counts, beside those that measure memory
_PRODUCT = ""  # its name among the backends'
Key = tuple[str, Direction, Mode]
Tell = Callable[[str, int, int, Mode], None]  # of a call: the backend, the round, of how many, the mode


@dataclass(frozen=True)
class BackendTimes:
    """The times of all backends, and what was measured beside them.

    Attributes:
        cache_bytes: bytes written before each call.
        product_flop, product_seconds: FLOP of the matrix product, and the seconds of each of its calls.
    """

    times: list[KernelTime]
    cache_bytes: int
    product_flop: int
    product_seconds: list[float]


@dataclass
class _Bench:
    """The backends that still run, and what was found about each."""

    case: Case
    device: Cpu | Cuda
    inputs: TimedInputs
    seed: int
    rng: Random
    should_stop: Callable[[], bool]
    tell: Tell
    timed: dict[Key, Timed] = field(default_factory=dict)
    ended: dict[tuple[str, Mode], tuple[Ending, str]] = field(default_factory=dict)
    memory: dict[tuple[str, Direction], int] = field(default_factory=dict)
    kernel_seconds: dict[Key, float | None] = field(default_factory=dict)
    product: Timed = field(default_factory=Timed)
    checks: dict[tuple[str, Mode], KernelCheck] = field(default_factory=dict)
    fp8: dict[str, Fp8 | None] = field(default_factory=dict)

    @contextmanager
    def noting(self, name: str, *modes: Mode, otherwise: Ending = "failed") -> Iterator[None]:
        """Record the ending of a backend that raises: out of memory, or `otherwise`. The others go on."""
        try:
            yield
        except Exception as error:
            ending: Ending = otherwise
            if isinstance(error, Unsupported):  # only the kernel itself could say so
                ending = "unsupported"
            # If a capture ends for lack of memory, ending it may raise, too.
            if any(cause and is_out_of_memory(cause) for cause in (error, error.__context__)):
                ending = "oom_gpu" if self.case.device == "cuda" else "oom_host"
            self.ended |= dict.fromkeys([(name, mode) for mode in modes], (ending, one_line(error)))
        if any((name, mode) in self.ended for mode in modes):
            self.device.release()

    def running(self, passes: Mapping[str, Passes], mode: Mode) -> dict[str, Passes]:
        """The backends that have not ended in this mode."""
        return {name: own for name, own in passes.items() if (name, mode) not in self.ended}

    def rounds(self, passes: Mapping[str, Passes], mode: Mode, count: int) -> None:
        """Call each of them once in each round. Times of a backend from before it ended do not count."""
        multiply = _product(self.case) if mode == "eager" and passes else None
        checkable = () if self.case.dropout else passes
        looked_at = {name: self._draw(name, mode).randrange(count) for name in checkable}
        for number in range(count):
            self.inputs.renew()
            left = self.running(passes, mode)
            names = [*left, *([_PRODUCT] if multiply else [])]
            for name in self.rng.sample(names, len(names)):
                if self.should_stop():
                    raise Interrupted(number, saved=False, unit=f"{mode} rounds")
                self.tell(name or "the large product", number + 1, count, mode)
                if name == _PRODUCT and multiply:
                    self.device.time(multiply, self.product)
                else:
                    self._call(name, left[name], mode, number, check=number == looked_at.get(name))

    def warm_up(self, eager: Mapping[str, Eager]) -> None:
        """Make the first calls, which do not count, and measure how much memory a call allocates."""
        for name, passes in eager.items():
            with self.noting(name, *MODES[self.case.device]):
                for _ in range(WARM_UP):  # what the first calls compile or allocate is not counted
                    passes.both()
                self.memory[name, "forward"] = self.device.most_memory(passes.forward)
                passes.drop()  # its memory is not the next call's
                self.memory[name, "backward"] = self.device.most_memory(passes.both)

    def profile_kernels(self, eager: Mapping[str, Passes]) -> None:
        """Measure the time of a GPU's kernels alone, in one more call of each backend."""
        if not isinstance(self.device, Cuda):
            return
        for name, passes in eager.items():
            with self.noting(name, "eager"):
                works = passes.forward, passes.backward
                for direction, work in zip(directions(self.case), works, strict=False):
                    self.kernel_seconds[name, direction, "eager"] = self.device.kernel_seconds(work)
                passes.drop()

    def captured(self, eager: Mapping[str, Eager]) -> dict[str, Passes]:
        """CUDA graphs of the backends that still run; one that ended before has ended here too."""
        # All graphs share memory, as much as the largest needs.
        pool = torch.cuda.graph_pool_handle()
        graphs: dict[str, Passes] = {}
        for name in self.running(eager, "eager"):
            with self.noting(name, "graph", otherwise="unsupported"):
                graphs[name] = Graphs(eager[name], pool)
            if name not in graphs:
                pool = torch.cuda.graph_pool_handle()  # a capture that failed may not have left the other one
        for name in eager:
            if (name, "eager") in self.ended:
                self.ended.setdefault((name, "graph"), self.ended[name, "eager"])
        return graphs

    def _draw(self, name: str, mode: Mode) -> Random:
        """Chooses the round in which a backend is checked, and what is checked."""
        return Random(f"{self.seed} {name} {mode}")  # noqa: S311  no secret

    def _check(self, name: str, passes: Passes, mode: Mode, number: int) -> None:
        """Check results outside the timed regions. A backend that cannot be checked gets no times."""
        try:
            draw, fp8 = self._draw(name, mode), self.fp8.get(name)
            looked_at, wrong = checked(self.case, self.inputs, passes.results, draw, number, fp8)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self.ended[name, mode] = "failed", "there was not enough memory to check what it gave"
            return
        self.checks[name, mode] = looked_at
        if wrong:
            self.ended[name, mode] = "wrong", f"in round {number + 1}, {wrong}"

    def _call(self, name: str, passes: Passes, mode: Mode, number: int, check: bool) -> None:
        """Time a backend's forward and backward, and check their results if asked."""
        with self.noting(name, mode):
            try:
                works = passes.forward, passes.backward
                for direction, work in zip(directions(self.case), works, strict=False):
                    self.device.time(work, self.timed.setdefault((name, direction, mode), Timed()))
                if check:
                    self._check(name, passes, mode, number)
            finally:
                passes.drop()


def measure(
    backends: Mapping[str, Backend],
    case: Case,
    seed: int,
    rounds: int,
    should_stop: Callable[[], bool] = lambda: False,
    tell: Tell = lambda *_: None,
) -> BackendTimes:
    """Time each backend forward and backward, on a GPU also in CUDA graphs.

    Args:
        backends: by name; all of them take the case.
        seed: of the numbers and of the orders.
        rounds: calls of each backend in each direction and mode.
        should_stop: asked before each call.
        tell: told before each call what it is.

    Raises:
        Interrupted: asked to stop. Nothing is kept.
    """
    inputs = TimedInputs(case, seed)
    bench = _Bench(case, device(case.device), inputs, seed, Random(seed), should_stop, tell)  # noqa: S311  no secret
    bench.fp8 = {name: backend.fp8 for name, backend in backends.items()}
    inputs.renew()
    eager = {name: Eager(backend, case, inputs) for name, backend in backends.items()}
    modes = MODES[case.device]
    bench.warm_up(eager)
    bench.rounds(bench.running(eager, "eager"), "eager", rounds)
    bench.profile_kernels(bench.running(eager, "eager"))
    if "graph" in modes:
        bench.rounds(bench.captured(eager), "graph", rounds)
    return BackendTimes(
        [_time(bench, name, direction, mode) for name in eager for mode in modes for direction in DIRECTIONS],
        CACHE_BYTES[case.device],
        2 * PRODUCT_SIZE[case.device] ** 3,
        bench.product.seconds,
    )


def _product(case: Case) -> Callable[[], object]:
    """A product of two square matrices of normal numbers, in the precision of the case.

    Of 8 bits its sums stay in the tensor cores, which is the fastest that PyTorch has.
    """
    size, dtype = PRODUCT_SIZE[case.device], torch.bfloat16 if case.fp8 else getattr(torch, case.dtype)
    a, b = (torch.randn((size, size), device=case.device, dtype=dtype) for _ in range(2))
    out = torch.empty((size, size), device=case.device, dtype=dtype)
    if case.fp8:
        a, b, one = a.to(_fp8.DTYPE), b.to(_fp8.DTYPE).T, torch.ones((), device=case.device)

    def multiply() -> None:
        if case.fp8:
            torch._scaled_mm(a, b, one, one, out_dtype=dtype, use_fast_accum=True, out=out)
        else:
            torch.mm(a, b, out=out)

    for _ in range(WARM_UP):
        multiply()
    return multiply


def _time(bench: _Bench, name: str, direction: Direction, mode: Mode) -> KernelTime:
    if ended := bench.ended.get((name, mode)):
        outcome, reason = ended
        return KernelTime(attention=name, direction=direction, mode=mode, outcome=outcome, reason=reason)
    if direction not in directions(bench.case):
        return KernelTime(
            attention=name, direction=direction, mode=mode, outcome="unsupported", reason=NO_BACKWARD
        )
    timed = bench.timed[name, direction, mode]
    return KernelTime(
        attention=name,
        direction=direction,
        mode=mode,
        outcome="completed",
        seconds=timed.seconds,
        host_seconds=timed.host_seconds,
        kernel_seconds=bench.kernel_seconds.get((name, direction, mode)),
        memory_bytes=bench.memory[name, direction],
        sm_mhz=timed.sm_mhz,
        throttle_reasons=sorted(timed.throttle_reasons),
        checked=bench.checks.get((name, mode)),
    )
