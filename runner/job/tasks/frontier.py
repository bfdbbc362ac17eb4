"""Finds the largest sequence, batch or depth that trains in a device's memory.

The forecast comes first, then a bisection. Each probe is a process of its own (`python -m
runner.job.tasks.frontier PARENT_PID`), which trains three steps and is ended if it takes too long. Fitting is
not monotone, so values above one that does not fit are tried too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from pathlib import Path
from threading import Lock
from typing import Any, Literal, NamedTuple

from model import attention
from model.attention.verify import cases
from model.measure import hostmemory, machine
from model.measure.hostmemory import Limit
from model.measure.memory import IMPORTED, OUTSIDE, peak_memory
from model.record.config import RunConfig
from model.record.errors import AssayError, Interrupted, Unsupported, UserError
from model.record.files import write
from model.record.folder import FRONTIER
from model.record.frontier import Frontier, Probe
from model.record.records import now
from model.record.tasks.frontier import FrontierConfig
from model.record.units import say, size
from runner.job import admission, phase
from runner.job.child import QuickExit, answer_stream, die_with, kill_group
from runner.job.tasks import RepeatRow, TaskContext, TaskSpec
from runner.state.endings import ending_of_abort, ending_of_exception, ending_of_exit
from runner.state.ledger import RunState

_STRIDE = 0.1  # of the forecast: how far from it the second probe is
_ABOVE = 3  # values above the largest that fits, at least, before that is believed
_LOOK_SECONDS = 0.5
_MARK = "probe: "  # begins the line that a probe answers with


class Unknown(AssayError):
    """No probe showed whether its value fits."""


class Try(NamedTuple):
    """A value to try, as how many times `frontier.multiple`, and why: see `Probe.purpose`."""

    factor: int
    purpose: Literal["search", "above"]


def next_try(seen: Mapping[int, bool], first: int, most: int, resolution: float, left: int) -> Try | None:
    """The next value to try; None once the frontier is known, or the search's probes are used up.

    Args:
        seen: whether each value that was tried fits.
        first: the forecast.
        most: the largest value that may be tried.
        left: how many probes the search still has; those above what does not fit are not among them.
    """
    if not seen:
        return Try(min(max(first, 1), most), "search")
    fits = max((count for count, fit in seen.items() if fit), default=0)
    above = sorted(count for count in seen if count > fits)
    if not above:  # whatever was tried last fits
        below = max((count for count in seen if count < fits), default=fits)
        stride = max(1, round(_STRIDE * first), 2 * (fits - below))
        return Try(min(most, fits + stride), "search") if left and fits < most else None
    if not fits:
        lowest = above[0]
        higher = above[1] if len(above) > 1 else lowest
        stride = max(1, round(_STRIDE * first), 2 * (higher - lowest))
        return Try(max(1, lowest - stride), "search") if left and lowest > 1 else None
    width = above[0] - fits
    if left and width > ceil(resolution * fits):
        return Try((fits + above[0]) // 2, "search")
    if len(above) < _ABOVE:
        beyond = (fits + times * width for times in range(2, 2 + 2 * _ABOVE))
        for count in beyond:
            if count <= most and count not in seen:
                return Try(count, "above")
    return None


def forecast_frontier(config: RunConfig, most: int, card_bytes: int) -> int:
    """The largest multiple, up to `most`, that fits by the forecast; 0 if none does."""
    low, high, outside = 0, most, OUTSIDE if config.device == "cuda" else 0
    while low < high:
        middle = (low + high + 1) // 2
        if forecast(config, middle) + outside <= card_bytes:
            low = middle
        else:
            high = middle - 1
    return low


def forecast(config: RunConfig, count: int) -> int:
    """Bytes that PyTorch allocates at most for a multiple; on a CPU, with Python and torch themselves."""
    section = _section(config)
    imported = IMPORTED if config.device == "cpu" else 0
    return imported + peak_memory(section.training(config, count * section.multiple))


def _section(config: RunConfig) -> FrontierConfig:
    section = config.section
    assert isinstance(section, FrontierConfig)
    return section


def run(context: TaskContext) -> None:
    """Certify the backend, then probe, and write the result.

    Raises:
        Unsupported: the backend cannot run here.
        Unknown: every probe hung or died.
        Interrupted: the run was asked to stop.
    """
    config = context.run.config
    section, backend = _section(config), config.attention
    case = config.attention_case if _refuses_shared(context) else cases.shared(config.attention_case)
    with phase.shown(context.attempt) as tell:
        root = context.folder.path.parent.parent
        context.note(certificate=admission.admit(backend, case, root, context.options, tell).key)

    card_bytes, most = _usable_bytes(context), section.most(config) // section.multiple
    first = forecast_frontier(config, most, card_bytes)
    probes, seen, left = list[Probe](), dict[int, bool](), section.steps
    with phase.shown(context.attempt) as tell:
        while tried := next_try(seen, first, most, section.resolution, left):
            if context.stop.requested():
                raise Interrupted(len(probes), saved=False, unit="probes")
            value = tried.factor * section.multiple
            what = f"{section.find} {value:,d}"
            tell(
                phase.Stage(
                    backend=backend,
                    begun=len(probes) + 1,
                    total=len(probes) + max(1, left),
                    what=what,
                    doing="probing",
                )
            )
            probe = _try_value(context, tried, card_bytes)
            say(f"{what}: {probe.outcome}{f', {probe.reason}' if probe.reason else ''}")
            probes.append(probe)
            seen[tried.factor] = probe.outcome == "fits"
            left -= probe.purpose == "search"
            context.progress.steps = len(probes)
    record = Frontier(
        run_id=context.run.run_id,
        attempt=context.progress.manifest.attempt,
        find=section.find,
        multiple=section.multiple,
        most=most * section.multiple,
        card_bytes=card_bytes,
        memory_fraction=section.memory_fraction,
        foreseen=first * section.multiple,
        probes=probes,
        measured_at=now(),
    )
    write(context.attempt / FRONTIER, record)
    if not any(probe.is_known for probe in probes):
        raise Unknown(f"no probe showed whether its value fits: {probes[0].reason}")
    if all(probe.outcome == "unsupported" for probe in probes):
        raise Unsupported([str(probes[-1].reason)])
    if record.largest:
        context.progress.memory_bytes = record.largest.peak_bytes or 0


def _refuses_shared(context: TaskContext) -> bool:
    """Whether the backend, which runs here, refuses the case that many runs' certificates share.

    Some backends ask the GPU. Their questions are asked in a process of their own: the context that CUDA then
    keeps is memory that no probe of this backend would have, and those of others would.

    Raises:
        Unsupported: the backend cannot run here.
    """
    config = context.run.config
    if config.device == "cpu":
        return _refuses_shared_here(config)
    section = _section(config)
    request = json.dumps({"config": config.model_dump(mode="json"), "value": None})
    answer = run_process(_command(context), request, section.probe_seconds, context)
    if answer["outcome"] == "unsupported":
        raise Unsupported([answer["reason"]])
    if "refuses_shared" not in answer:
        raise AssayError(f"'{config.attention}' did not say whether it runs here: {answer['reason']}")
    return bool(answer["refuses_shared"])


def _refuses_shared_here(config: RunConfig) -> bool:
    backend = attention.require(config.attention, config.attention_case)
    return bool(attention.reasons_of(backend, cases.shared(config.attention_case)))


def _command(context: TaskContext) -> list[str]:
    return [sys.executable, *context.options, "-m", "runner.job.tasks.frontier", str(os.getpid())]


def _usable_bytes(context: TaskContext) -> int:
    """Bytes that a probe may use: the setting's share of the GPU's memory, or of the run's limit on a CPU.

    Raises:
        UserError: on a CPU, the profile sets no limit, or one that this process already uses up.
    """
    fraction, most = _section(context.run.config).memory_fraction, context.run.memory_bytes
    if context.run.config.device == "cuda":
        import torch

        return int(fraction * torch.cuda.get_device_properties(0).total_memory)
    if most is None:
        raise UserError("a frontier on a CPU is that of a limit: set `memory` in the profile, or in a rule")
    left = min(int(fraction * most), most - hostmemory.in_use())
    if left <= 0:
        raise UserError(f"{context.run.limit_of_memory} leaves nothing for a probe: raise it")
    return left


def _try_value(context: TaskContext, tried: Try, card_bytes: int) -> Probe:
    """Train three steps in a process of their own, and say how that ended."""
    config = context.run.config
    section = _section(config)
    share = f"{100 * section.memory_fraction:.3g} % of " if section.memory_fraction < 1 else ""
    request = {
        "config": config.model_dump(mode="json"),
        "value": tried.factor * section.multiple,
        "card_bytes": card_bytes,
        "emulated": section.memory_fraction < 1,
        "source": f"{share}{context.run.limit_of_memory}",
    }
    answer = run_process(_command(context), json.dumps(request), section.probe_seconds, context)
    users = answer.pop("users", None)
    if users is not None and context.progress.manifest.device_users is None:
        context.note(device_users=users)
    if answer["reason"] and answer["outcome"] == "unsupported":
        answer["reason"] = section.in_own_words(answer["reason"])
    return Probe(
        value=tried.factor * section.multiple,
        purpose=tried.purpose,
        forecast_bytes=forecast(config, tried.factor),
        **answer,
    )


def run_process(
    command: Sequence[str], request: str, limit_seconds: float, context: TaskContext
) -> dict[str, Any]:
    """Run a probe's process; returns what it answered, or what can be told of it without an answer.

    Raises:
        Interrupted: the run was asked to stop meanwhile.
    """
    kills, began = hostmemory.oom_kills(), time.monotonic()
    with tempfile.TemporaryFile() as asked, tempfile.NamedTemporaryFile() as errors:
        asked.write(request.encode())
        asked.seek(0)
        process = subprocess.Popen(
            command, stdin=asked, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
        if context.run.config.device == "cpu":  # it watches itself
            context.progress.apart.add(process.pid)
        try:
            late = False
            while not late:
                try:
                    printed = process.communicate(timeout=_LOOK_SECONDS)[0].decode(errors="replace")
                    break
                except subprocess.TimeoutExpired:
                    late = time.monotonic() - began > limit_seconds
                    if context.stop.requested():
                        raise Interrupted(context.progress.steps, saved=False, unit="probes") from None
        finally:
            kill_group(process)
            if process.stdout:
                process.stdout.close()
            context.progress.apart.discard(process.pid)
        seconds = time.monotonic() - began
        if late:
            reason = f"had not done its steps after {limit_seconds:g} s"
            return {"outcome": "timeout", "reason": reason, "seconds": seconds}
        errors.seek(0)
        error_output = errors.read().decode(errors="replace")
        sys.stderr.write(error_output)
        lines = [line for line in printed.splitlines() if line.startswith(_MARK)]
        if lines:
            answered: dict[str, Any] = json.loads(lines[0].removeprefix(_MARK))
            return answered | {"seconds": seconds}
        ending = ending_of_abort(Path(errors.name)) or ending_of_exit(
            process.returncode, oom_killed=hostmemory.oom_kills() > kills
        )
        outcome = ending.outcome.value if ending.outcome.out_of_memory else "failed"
        last = error_output.strip().rpartition("\n")[2]
        reason = f"{ending.reason}{f': {last}' if last else ''}"
        return {"outcome": outcome, "reason": reason, "seconds": seconds}


def main() -> None:
    """Probe for the parent process, which asks on standard input; end with it."""
    die_with(int(sys.argv[1]))
    leaving = QuickExit()
    asked = json.loads(sys.stdin.read())
    config = RunConfig.model_validate(asked["config"])
    answers, answering = answer_stream(), Lock()

    def answer(values: Mapping[str, Any]) -> None:
        """Answer once: the thread that watches memory may have."""
        if answering.acquire(blocking=False):
            print(f"{_MARK}{json.dumps(values)}", file=answers, flush=True)

    if asked["value"] is None:
        try:
            answer({"outcome": "fits", "reason": None, "refuses_shared": _refuses_shared_here(config)})
        except Unsupported as error:
            answer({"outcome": "unsupported", "reason": str(error)})
    else:
        _probe(_section(config).training(config, asked["value"]), asked, answer)
    leaving.done = True


def _probe(config: RunConfig, asked: Mapping[str, Any], answer: Callable[[Mapping[str, Any]], None]) -> None:
    """Train some steps, and answer whether they fit."""

    def end(reason: str) -> None:
        answer({"outcome": "oom_host", "reason": reason, "peak_bytes": hostmemory.peak_in_use()})
        os._exit(0)

    on_gpu = config.device == "cuda"
    limit = Limit(None if on_gpu else asked["card_bytes"], asked["source"], gpu=on_gpu)
    machine.wait_patiently(config.device)
    limit.watch(end)
    measured: dict[str, Any] = {}
    allowed: int | None = None  # bytes for PyTorch, of a smaller card
    begun = False
    try:
        if on_gpu:
            measured["users"] = machine.device_users("cuda")
            if asked["emulated"]:
                allowed = _limit_allocator(asked["card_bytes"])
        begun = True
        _train(config, limit.hold)
        reason = _why_not_fitting(asked["card_bytes"], limit, on_gpu)
        outcome = "edge" if on_gpu else "oom_host"
        answer({"outcome": outcome if reason else "fits", "reason": reason, **measured, **_memory(on_gpu)})
    except BaseException as error:
        ending = ending_of_exception(error, config.device, limit)
        limit.release()
        if ending.outcome.out_of_memory and begun:
            emulated = f" (limited to {size(allowed)})" if allowed is not None else ""
            reason = f"{ending.reason or ending.outcome.meaning}{emulated}"
            answer({"outcome": ending.outcome, "reason": reason, **measured, **_memory(on_gpu)})
        elif isinstance(error, Unsupported):
            answer({"outcome": "unsupported", "reason": str(error), **measured})
        else:
            reason = ending.reason or ending.outcome.meaning
            if ending.outcome.out_of_memory:  # what fills the GPU is not this value
                reason = f"before it began to train: {reason}"
            answer({"outcome": "failed", "reason": reason, **measured})
            raise


def _limit_allocator(card_bytes: int) -> int:
    """Limit PyTorch to what a smaller card would leave it beside CUDA's own memory; returns these bytes."""
    import torch

    allowed = card_bytes - _outside()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(max(0.0, allowed / total))
    return allowed


def _outside() -> int:
    """Bytes of the GPU that are in use beside what this process's allocator holds."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return int(total - free - torch.cuda.memory_reserved())


def _train(config: RunConfig, imported: Callable[[], None]) -> None:
    """Three steps as a training takes them, on random tokens: what a token is takes no memory."""
    import torch

    from model.record.text import START
    from model.training.feed import Ready
    from model.training.step import TrainingStep
    from model.training.trainer import build_model

    imported()
    if reasons := config.unsupported():
        raise Unsupported([*reasons.values()])
    backend = attention.require(config.attention, config.attention_case)
    step_on = TrainingStep(config, build_model(config, backend))
    shape = config.train.batch_size, config.train.sequence_length
    random = torch.Generator().manual_seed(config.seed)
    for step in range(1, config.train.steps + 1):
        tokens = torch.randint(config.model.vocab_size, (2, *shape), generator=random)
        inputs, labels = tokens.to(config.device)
        step_on(Ready(inputs, labels, labels.numel(), START, None), step).loss.item()


def _why_not_fitting(card_bytes: int, limit: Limit, on_gpu: bool) -> str | None:
    """Why the steps do not count as fitting, although they were done; None if they do."""
    if not on_gpu:
        if (reason := limit.exceeded()) or (peak := hostmemory.peak_in_use()) <= card_bytes:
            return reason
        moment = f"{size(peak)} were in use for a moment, of {size(card_bytes)}"
        return f"out of host memory: {moment} ({limit.source})"
    import torch

    if retries := torch.cuda.memory_stats()["num_alloc_retries"]:
        return f"the allocator had to free its cache {retries} times"
    if (used := torch.cuda.max_memory_reserved() + _outside()) > card_bytes:
        return f"with what CUDA uses beside it, it needs {size(used)} of {size(card_bytes)}"
    return None


def _memory(on_gpu: bool) -> dict[str, int]:
    """What the steps took, as `Probe` has it."""
    if not on_gpu:
        return {"peak_bytes": hostmemory.peak_in_use()}
    import torch

    return {
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "retries": int(torch.cuda.memory_stats()["num_alloc_retries"]),
        "outside_bytes": _outside(),
    }


def compared(original: RunState, repeat: RunState) -> tuple[list[RepeatRow], str]:
    """The largest value that fits, and how each probe that both took ended."""
    before, after = (state.latest.frontier if state.latest else None for state in (original, repeat))
    if before is None or after is None:
        return [], "no frontiers to compare"
    largest = [record.largest.value if record.largest else 0 for record in (before, after)]
    rows = [RepeatRow.of(f"largest {before.find} that fits", *largest)]
    again = {probe.value: probe.outcome for probe in after.probes}
    rows += [
        RepeatRow.of(f"{before.find} {probe.value}", probe.outcome, again[probe.value])
        for probe in before.probes
        if probe.value in again
    ]
    same = "the same" if largest[0] == largest[1] else f"{largest[1]:,d}, where it was {largest[0]:,d}"
    return rows, f"the largest {before.find} that fits is {same}"


task = TaskSpec(imports=(), run=run, compared=compared, admits=True, records_steps=False, leaves_gpu=True)

if __name__ == "__main__":
    main()
