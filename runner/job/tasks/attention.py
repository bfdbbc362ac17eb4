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
from model.record.kernels import DIRECTIONS, FILE, MODES, Ending, KernelTime, KernelTimes, Mode
from model.record.records import now
from runner.job import admission, phase
from runner.job.admission import Killed, Refused
from runner.job.tasks import Given, Work
from runner.job.tasks._compared import DIFFERS, Row, row
from runner.state.ledger import RunState

_TELL_SECONDS = 5.0


class Untimed(AssayError):
    """No backend could be timed, though not all of them say that they do not support it."""


def run(given: Given) -> None:
    """Certify and time the backends, and write the results.

    Raises:
        Unsupported: no backend takes the shape.
        Untimed: none has a time.
        Interrupted: the run was asked to stop.
    """
    from model.attention.timing.measure import measure

    config, case = given.run.config, given.run.config.attention_case
    admitted = _admitted(given)
    certified = {name: each.key for name, each in admitted.items() if isinstance(each, Certificate)}
    backends = {name: attention.load(name) for name in certified}
    with phase.shown(given.attempt) as tell:
        asked = given.stop.requested
        found = measure(backends, case, config.seed, config.call.steps, asked, _told(tell))
    times = [each.model_copy(update={"certificate": certified[each.attention]}) for each in found.times]
    for name, error in admitted.items():
        times += _rows(name, error, config) if isinstance(error, Exception) else []
    record = KernelTimes(
        run_id=given.run.run_id,
        attempt=given.progress.manifest.attempt,
        case=case,
        rounds=config.call.steps,
        cache_bytes=found.cache_bytes,
        product_flop=found.product_flop,
        product_seconds=found.product_seconds,
        times=sorted(times, key=lambda each: each.attention),
        measured_at=now(),
    )
    write(given.attempt / FILE, record)
    _refuse_nothing(record)
    given.progress.steps = config.call.steps


def _told(tell: phase.Tell) -> Callable[[str, int, int, Mode], None]:
    """Says which call is timed, but not more often than every few seconds: it is no part of what is timed."""
    last = time.monotonic()

    def call(name: str, number: int, rounds: int, mode: Mode) -> None:
        nonlocal last
        if time.monotonic() - last > _TELL_SECONDS:
            last = time.monotonic()
            called = {"eager": "called from Python", "graph": "a CUDA graph"}[mode]
            tell(
                phase.Stage(
                    backend=name, begun=number, total=rounds, what=f"round {number}, {called}", doing="timing"
                )
            )

    return call


def _admitted(given: Given) -> dict[str, Certificate | Exception]:
    """Each backend's certificate by its name, or why it has none."""
    config, found = given.run.config, dict[str, Certificate | Exception]()
    left = dict[str, Case]()
    for name in config.call.names:
        try:
            attention.require(name, config.attention_case)
            left[name] = _certified_as(name, config.attention_case)
        except AssayError as error:
            found[name] = error
        except Exception as error:  # another package's, which may raise anything
            found[name] = UserError(f"`unsupported_reasons` raised {one_line(error)}")
    root = given.folder.path.parent.parent
    with phase.shown(given.attempt) as tell:
        return found | admission.admit_each(left, root, given.options, tell)


def _certified_as(name: str, case: Case) -> Case:
    """The case of the certificate that a backend needs: the shared one, unless it cannot take that."""
    shared = cases.shared(case)
    return case if attention.reasons_of(attention.load(name), shared) else shared


def _rows(name: str, error: Exception, config: RunConfig) -> list[KernelTime]:
    """A row for each way in which the backend was not timed."""
    outcome, reason = _ending(error, config)
    certificate = error.certificate.key if isinstance(error, Refused) and error.certificate else None
    said = {"outcome": outcome, "reason": reason, "certificate": certificate}
    ways = [(mode, direction) for mode in MODES[config.device] for direction in DIRECTIONS]
    return [KernelTime(attention=name, direction=direction, mode=mode, **said) for mode, direction in ways]


def _ending(error: Exception, config: RunConfig) -> tuple[Ending, str]:
    from model.attention.verify.call import is_out_of_memory

    text = " ".join(str(error).split())
    if isinstance(error, Unsupported):
        return "unsupported", config.in_own_words(text)
    if isinstance(error, Refused):
        return "wrong", text
    if isinstance(error, UserError):  # it could not be loaded, or asked
        return "failed", text
    said = f"in its trial, {one_line(error)}"
    if isinstance(error, Killed) or is_out_of_memory(error):
        return ("oom_gpu" if config.device == "cuda" and not isinstance(error, Killed) else "oom_host"), said
    return "failed", said


def _refuse_nothing(record: KernelTimes) -> None:
    """A run that timed no backend is not completed."""
    if any(each.outcome == "completed" for each in record.times):
        return
    reasons = {each.attention: f"{each.attention}: {each.reason}" for each in record.times}
    if all(each.outcome == "unsupported" for each in record.times):
        raise Unsupported([*reasons.values()])
    raise Untimed(f"no backend was timed: {'; '.join(reasons.values())}")


def compared(then: RunState, now: RunState) -> tuple[list[Row], str]:
    """How each backend ended, and the ratios of its times, which are never identical."""
    before, after = (_timed(state) for state in (then, now))
    both = sorted(before.keys() & after.keys())
    rows = [row(", ".join(way), before[way].outcome, after[way].outcome) for way in both]
    pairs = [(before[way].median_seconds, after[way].median_seconds) for way in both]
    ratios = [new / old for old, new in pairs if old and new]
    if not ratios:
        return rows, "no times to compare"
    unlike = sum(each[3] == DIFFERS for each in rows)
    ended = (
        f"{unlike} of {len(rows)} calls end differently"
        if unlike
        else f"all {len(rows)} calls end the same way"
    )
    return rows, f"{ended}; their times are {min(ratios):.2f} to {max(ratios):.2f} of what they were"


def _timed(state: RunState) -> dict[tuple[str, str, str], KernelTime]:
    kernels = state.latest.kernels if state.latest else None
    return {(each.attention, each.direction, each.mode): each for each in (kernels.times if kernels else ())}


work = Work(imports=("model.attention.timing.measure",), run=run, compared=compared, admits=True)
