"""Counts the bytes that one call moves, with NVIDIA's profiler, ncu of Nsight Compute.

The call is that of `python -m model.attention.timing.traffic BACKEND DIRECTION CASE`. The profiler lengthens
what it watches, so that no call is watched that is timed. Each backend and direction has a process of its
own, in which ncu counts all kernels of one call. It runs each of them alone, on caches that it emptied, as
often as its counters need: a kernel finds nothing that the one before it left in the L2 cache, and what it
leaves there itself is not counted as written to DRAM. Additions in memory count as writes, once.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from model.record import rocm
from model.record.case import Case
from model.record.errors import AssayError, Interrupted
from model.record.kernels import Counted, Direction, Traffic, directions
from model.record.traffic import Gpu

SECTOR_BYTES = 32  # of the L2 cache
LIMIT_SECONDS = 300.0  # for one process
_WARM_UP = 2  # calls before the one that counts: they compile and choose
_LOOK_SECONDS = 1.0
# Counters of ncu by what they are summed into, with the bytes of each unit.
METRICS: dict[str, tuple[str, int]] = {
    "dram__bytes_read.sum": ("dram_read_bytes", 1),
    "dram__bytes_write.sum": ("dram_write_bytes", 1),
    "lts__t_sectors_op_read.sum": ("l2_read_bytes", SECTOR_BYTES),
    "lts__t_sectors_op_write.sum": ("l2_write_bytes", SECTOR_BYTES),
    "lts__t_sectors_op_red.sum": ("l2_write_bytes", SECTOR_BYTES),
    "lts__t_sectors_op_atom.sum": ("l2_write_bytes", SECTOR_BYTES),
}
_UNITS = {"byte": 1, "Kbyte": 10**3, "Mbyte": 10**6, "Gbyte": 10**9, "sector": 1}


class Uncounted(AssayError):
    """Nothing was counted; the text says why."""


def measure(
    names: Sequence[str],
    case: Case,
    python: Sequence[str] = (),
    should_stop: Callable[[], bool] = lambda: False,
    tell: Callable[[str, int, int], None] = lambda *_: None,
) -> dict[tuple[str, Direction], Traffic]:
    """Bytes of one call of each backend in each direction, by formula and counted.

    Args:
        names: of backends that take the case.
        python: options that make a process import the run's code.
        should_stop: asked every second.
        tell: told the backend, and which process of how many is next.

    Raises:
        Interrupted: asked to stop. Nothing is kept.
    """
    from model import attention

    ways = [(name, direction) for name in names for direction in directions(case)]
    if case.device != "cuda" or rocm.version() is not None:
        return dict.fromkeys(ways, Traffic(reason="ncu counts on NVIDIA GPUs alone"))
    import torch

    device = torch.cuda.get_device_properties()
    gpu = Gpu((device.major, device.minor), device.multi_processor_count)
    torch.cuda.empty_cache()  # the other processes share the GPU with this one
    traffic: dict[tuple[str, Direction], Traffic] = {}
    for number, (name, direction) in enumerate(ways, 1):
        tell(name, number, len(ways))
        formula = getattr(attention.load(name).moves(case, gpu), direction)
        try:
            counted = count(name, direction, case, python, should_stop)
            traffic[name, direction] = Traffic(formula_bytes=formula, counted=counted)
        except Uncounted as error:
            traffic[name, direction] = Traffic(formula_bytes=formula, reason=str(error))
    return traffic


def count(
    name: str, direction: Direction, case: Case, python: Sequence[str], should_stop: Callable[[], bool]
) -> Counted:
    """Count one call in a process of its own.

    Raises:
        Uncounted: there is no ncu, it may not count here, it failed, or it took too long.
        Interrupted: asked to stop.
    """
    ncu = profiler()
    script = [sys.executable, *python, "-m", "model.attention.timing.traffic"]
    with tempfile.TemporaryDirectory() as folder:
        log, output = Path(folder) / "ncu.csv", Path(folder) / "output"
        counting = ["--metrics", ",".join(METRICS), "--clock-control", "none", "--cache-control", "all"]
        printing = ["--csv", "--print-units", "base", "--log-file", str(log)]
        watching = ["--profile-from-start", "off", "--target-processes", "all"]
        call = [*script, name, direction, json.dumps(asdict(case))]
        code = _run([ncu, *counting, *printing, *watching, *call], output, should_stop)
        text = log.read_text(errors="replace") if log.exists() else ""
        try:
            return read(text)
        except Uncounted as error:
            raise Uncounted(why(text, output.read_text(errors="replace"), code) or str(error)) from error


def profiler() -> str:
    """The path of ncu: of PATH, or else the newest where Nsight Compute's installer puts it.

    Raises:
        Uncounted: there is none.
    """

    def release(path: Path) -> list[int]:
        return [int(part) for part in path.parent.name.split(".") if part.isdigit()]

    installed = sorted(Path("/opt/nvidia/nsight-compute").glob("*/ncu"), key=release)
    path = shutil.which("ncu") or next(map(str, reversed(installed)), None)
    if path is None:
        raise Uncounted("ncu (NVIDIA Nsight Compute) is neither on PATH nor in /opt/nvidia/nsight-compute")
    return path


def _run(command: Sequence[str], output: Path, should_stop: Callable[[], bool]) -> int:
    """Run ncu and what it watches, with all that they print in a file; returns its exit code."""
    began = time.monotonic()
    with output.open("wb") as printed:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed, start_new_session=True,
            env={**os.environ, "LC_ALL": "C"},  # numbers as the parser reads them
        )  # fmt: skip
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    return process.wait(_LOOK_SECONDS)
                if should_stop():
                    raise Interrupted(0, saved=False, unit="counted calls")
                if time.monotonic() - began > LIMIT_SECONDS:
                    raise Uncounted(f"ncu had not ended after {LIMIT_SECONDS:g} s")
        finally:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def read(text: str) -> Counted:
    """Sum what ncu counted over all kernels of the call.

    Args:
        text: a log of `ncu --csv`: lines that begin with `==`, and a line for each kernel and metric.

    Raises:
        Uncounted: no kernel is there, one lacks a metric, or a value is no number of bytes or sectors.
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    kernels: dict[str, set[str]] = defaultdict(set)
    sums: dict[str, float] = dict.fromkeys((field for field, _ in METRICS.values()), 0.0)
    for row in csv.DictReader(lines):
        metric = row.get("Metric Name") or ""
        if metric in METRICS:
            field, unit_bytes = METRICS[metric]
            sums[field] += _number(row) * unit_bytes
            kernels[f"{row.get('Process ID')} {row.get('ID')}"].add(metric)
    if not kernels:
        raise Uncounted("ncu counted no kernel")
    for metrics in kernels.values():
        if lacking := METRICS.keys() - metrics:
            raise Uncounted(f"ncu did not count {', '.join(sorted(lacking))} of a kernel")
    return Counted(kernels=len(kernels), **{field: round(value) for field, value in sums.items()})


def _number(row: Mapping[str, str | None]) -> float:
    metric, value, unit = (row.get(f"Metric {part}") or "" for part in ("Name", "Value", "Unit"))
    try:
        return float(value.replace(",", "")) * _UNITS[unit]
    except (ValueError, KeyError):
        raise Uncounted(f"ncu gave {metric} as '{value}' in the unit '{unit}'") from None


def why(log: str, output: str, code: int) -> str:
    """Why ncu counted nothing, in its words or those of the process that it watched; empty if unknown."""
    if "ERR_NVGPUCTRPERM" in log + output:
        return "this user may not read the GPU's counters (ERR_NVGPUCTRPERM): an administrator can allow it"
    errors = [line.removeprefix("==ERROR== ") for line in log.splitlines() if line.startswith("==ERROR==")]
    last = output.strip().rpartition("\n")[2]
    if errors:
        return f"ncu: {errors[0]}{f' ({last})' if last else ''}"
    return f"the counted process ended with code {code}: {last}" if code else ""


def main() -> None:
    """Make the call that ncu counts, after others that it does not."""
    import torch

    from model import attention
    from model.attention.timing.passes import Eager, TimedInputs

    name, direction, text = sys.argv[1:]
    case = Case(**json.loads(text))
    inputs = TimedInputs(case, seed=0)
    inputs.renew()
    passes = Eager(attention.require(name, case), case, inputs)
    for _ in range(_WARM_UP):
        passes.both()
    if direction == "backward":
        passes.forward()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]  # torch leaves these so
    (passes.forward if direction == "forward" else passes.backward)()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
