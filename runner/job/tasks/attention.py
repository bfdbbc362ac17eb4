"""Times attention alone, on one shape: each backend with a certificate of its own, all in this process.

Shapes that differ only in batch, length and number of heads share a certificate, so the results of the timed
calls are checked too. A backend that cannot take the shape, is wrong, or runs out of memory gets rows that
say so, without times.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from model import attention
from model.attention.verify import cases
from model.attention.verify.certificate import Certificate
from model.record.case import Case
from model.record.config import RunConfig
from model.record.errors import AssayError, Unsupported, UserError, one_line
from model.record.files import write
from model.record.folder import KERNELS
from model.record.kernels import DIRECTIONS, MODES, Direction, Ending, KernelTime, KernelTimes, Mode, Traffic
from model.record.records import now
from runner.job import admission, phase
from runner.job.admission import BackendRefused, Killed
from runner.job.tasks import DIFFERS, RepeatRow, TaskContext, TaskSpec
from runner.state.ledger import RunState

_TELL_SECONDS = 5.0


class Untimed(AssayError):
    """No backend could be timed, though not all of them say that they do not support it."""


def run(context: TaskContext) -> None:
    """Certify and time the backends, and write the results.

    Raises:
        Unsupported: no backend takes the shape.
        Untimed: none has a time.
        Interrupted: the run was asked to stop.
    """
    from model.attention.timing.measure import measure

    config, case = context.run.config, context.run.config.attention_case
    # A certificate for each backend, or why it has none.
    refused, asked = dict[str, Certificate | Exception](), dict[str, Case]()
    for name in config.call.names:
        try:
            attention.require(name, case)
            # The certificate that all such shapes share, unless the backend cannot take its case.
            shared = cases.shared(case)
            asked[name] = case if attention.reasons_of(attention.load(name), shared) else shared
        except AssayError as error:
            refused[name] = error
        except Exception as error:  # another package's, which may raise anything
            refused[name] = UserError(f"`unsupported_reasons` raised {one_line(error)}")
    root = context.folder.path.parent.parent
    with phase.shown(context.attempt) as tell:
        admitted = refused | admission.admit_each(asked, root, context.options, tell)

    certified = {name: answer.key for name, answer in admitted.items() if isinstance(answer, Certificate)}
    backends = {name: attention.load(name) for name in certified}
    with phase.shown(context.attempt) as tell:
        stop, show = context.stop.requested, timing_shown(tell)
        measured = measure(backends, case, config.seed, config.call.steps, stop, show)
        moved = _traffic(context, measured.times, tell) if config.call.traffic else {}
    times = [
        timed.model_copy(
            update={
                "certificate": certified[timed.attention],
                "traffic": moved.get((timed.attention, timed.direction)) if timed.mode == "eager" else None,
            }
        )
        for timed in measured.times
    ]
    for name, answer in admitted.items():
        times += _untimed(name, answer, config) if isinstance(answer, Exception) else []
    record = KernelTimes(
        run_id=context.run.run_id,
        attempt=context.progress.manifest.attempt,
        case=case,
        rounds=config.call.steps,
        cache_bytes=measured.cache_bytes,
        product_flop=measured.product_flop,
        product_seconds=measured.product_seconds,
        times=sorted(times, key=lambda timed: timed.attention),
        measured_at=now(),
    )
    write(context.attempt / KERNELS, record)
    # A run in which no backend was timed is not completed.
    if all(timed.outcome != "completed" for timed in record.times):
        names: dict[str, dict[str, None]] = {}  # in their order, by reason
        for timed in record.times:
            names.setdefault(str(timed.reason), {})[timed.attention] = None
        reasons = [f"{', '.join(who)}: {reason}" for reason, who in names.items()]
        if all(timed.outcome == "unsupported" for timed in record.times):
            raise Unsupported(reasons)
        raise Untimed(f"no backend was timed: {'; '.join(reasons)}")
    context.progress.steps = config.call.steps


def _traffic(
    context: TaskContext, times: list[KernelTime], tell: phase.Tell
) -> dict[tuple[str, Direction], Traffic]:
    """The bytes that calls move, of the backends that were timed."""
    from model.attention.timing import traffic

    def show(name: str, number: int, processes: int) -> None:
        what = "bytes of a call"
        tell(phase.Stage(backend=name, begun=number, total=processes, what=what, doing="counting"))

    timed = [time.attention for time in times if time.mode == "eager" and time.outcome == "completed"]
    case = context.run.config.attention_case
    return traffic.measure([*dict.fromkeys(timed)], case, context.options, context.stop.requested, show)


def timing_shown(tell: phase.Tell) -> Callable[[str, int, int, Mode], None]:
    """Says which call is timed, but only every few seconds: it is no part of what is timed."""
    last = time.monotonic()

    def show(name: str, number: int, rounds: int, mode: Mode) -> None:
        nonlocal last
        if time.monotonic() - last > _TELL_SECONDS:
            last = time.monotonic()
            way = {"eager": "called from Python", "graph": "a CUDA graph"}[mode]
            what = f"round {number}, {way}"
            tell(phase.Stage(backend=name, begun=number, total=rounds, what=what, doing="timing"))

    return show


def _untimed(name: str, error: Exception, config: RunConfig) -> list[KernelTime]:
    """A row for each way in which the backend was not timed."""
    from model.attention.verify.call import is_out_of_memory

    outcome: Ending
    reason = " ".join(str(error).split())
    if isinstance(error, Unsupported):
        outcome, reason = "unsupported", config.section.in_own_words(reason)
    elif isinstance(error, BackendRefused):
        outcome = "wrong"
    elif isinstance(error, UserError):  # it could not be loaded, or asked
        outcome = "failed"
    else:
        outcome, reason = "failed", f"in its trial, {one_line(error)}"
        if isinstance(error, Killed):
            outcome = "oom_host"
        elif is_out_of_memory(error):
            outcome = "oom_gpu" if config.device == "cuda" else "oom_host"
    certificate = error.certificate.key if isinstance(error, BackendRefused) and error.certificate else None
    return [
        KernelTime(
            attention=name,
            direction=direction,
            mode=mode,
            outcome=outcome,
            reason=reason,
            certificate=certificate,
        )
        for mode in MODES[config.device]
        for direction in DIRECTIONS
    ]


def compared(original: RunState, repeat: RunState) -> tuple[list[RepeatRow], str]:
    """How each backend ended, and the ratios of its times, which are never identical."""
    before, after = _times(original), _times(repeat)
    both = sorted(before.keys() & after.keys())
    rows = [RepeatRow.of(", ".join(way), before[way].outcome, after[way].outcome) for way in both]
    pairs = [(before[way].median_seconds, after[way].median_seconds) for way in both]
    ratios = [new / old for old, new in pairs if old and new]
    if not ratios:
        return rows, "no times to compare"
    unlike = sum(row.verdict == DIFFERS for row in rows)
    ended = (
        f"{unlike} of {len(rows)} calls end differently"
        if unlike
        else f"all {len(rows)} calls end the same way"
    )
    return rows, f"{ended}; their times are {min(ratios):.2f} to {max(ratios):.2f} of what they were"


def _times(state: RunState) -> dict[tuple[str, str, str], KernelTime]:
    kernels = state.latest.kernels if state.latest else None
    times = kernels.times if kernels else ()
    return {(timed.attention, timed.direction, timed.mode): timed for timed in times}


task = TaskSpec(
    imports=("model.attention.timing.measure",), run=run, compared=compared, admits=True, records_steps=False
)
