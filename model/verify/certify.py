"""Put a backend on trial, and write down what was found.

certify("flash", "cuda")        all that it supports: `runner verify`
certify_case("flash", case)     one run's shape and precision, and what breaks kernels near it: the gate
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

from model import attention
from model.attention import Backend, Case
from model.disk.record import now
from model.errors import Unsupported
from model.verify import cases, compiled, data, habits, identity, launches, right, same_model, surroundings
from model.verify.call import Subject, is_out_of_memory
from model.verify.cases import Variant
from model.verify.certificate import Certificate, Check, Verdict, describe


def certify(name: str, device: str) -> Certificate:
    """A certificate for all that the backend supports on this device.

    Raises:
        UserError: there is no such backend, or it is not a `Backend`.
        torch.OutOfMemoryError, MemoryError, RuntimeError: there is not enough memory.
    """
    trial = _Trial(name, attention.load(name), device)
    return trial.held(cases.covering(device, trial.backend.compiles), cases.base(device))


def certify_case(name: str, case: Case) -> Certificate:
    """A certificate for a run: its own shape first, then what breaks kernels near it.

    Raises:
        UserError: there is no such backend, or it is not a `Backend`.
        torch.OutOfMemoryError, MemoryError, RuntimeError: there is not enough memory. At the run's own shape
            that is the run's outcome.
    """
    trial = _Trial(name, attention.load(name), case.device, case)
    own, *near = cases.around(case, trial.backend.compiles)
    try:
        return trial.held([own, *near], [each.case for each in near])
    finally:
        data.known.cache_clear()  # the run needs the memory


def without_trial(name: str, device: str, reason: str) -> Certificate:
    """The certificate of a backend whose trial ended without an answer, as in a crash: it is wrong."""
    return _Trial(name, attention.load(name), device).written("wrong", [reason])


@dataclass
class _Trial:
    """One backend, and what was found out about it so far.

    Attributes:
        case: the run's; None: all that the backend supports.
        refusals: why it does not take a case, by the case's description.
    """

    name: str
    backend: Backend
    device: str
    case: Case | None = None
    checks: list[Check] = field(default_factory=list)
    refusals: dict[str, list[str]] = field(default_factory=dict)
    kernels: dict[str, list[str]] = field(default_factory=dict)
    graph_break: str | None = None
    deterministic: bool | None = None
    started: float = field(default_factory=perf_counter)

    def held(self, variants: list[Variant], small: list[Case]) -> Certificate:
        """Look at the numbers of all variants, then at everything else at one place, the first that it takes.

        Args:
            small: places to prefer, before those of the variants.
        """
        allowed = [each for each in variants if self._takes(each.case)]
        before = surroundings.settings()
        if not self._refuses_the_run():
            self._numbers(allowed)
        if refused := self._refuses_the_run():
            return self.written("unsupported", refused)
        places = [*small, *(each.case for each in allowed)]
        if not any(self._takes(place) and self._in_depth(place) for place in places):
            return self._runs_nowhere()
        self._repeats(self.case or cases.busy(self.device))
        self.checks += surroundings.check(self.backend, self.case or places[0], before)
        return self.written("wrong" if self._failed() else "right", self._failed())

    def _numbers(self, variants: list[Variant]) -> None:
        for each in variants:
            with self._refusing(each.case):
                self.checks += right.check(self.backend, each)

    def _in_depth(self, place: Case) -> bool:
        """Habits, model, graph, and kernels (at the run's shape); False if the kernel refuses the place."""
        with self._refusing(place):
            checks = habits.check(self.backend, place) + same_model.check(self.name, self.backend, place)
            launched, self.kernels = launches.check(self.name, self.backend, self.case or place)
            checks += launched
            if all(check.passed for check in checks):  # tracing takes seconds: not for what is wrong already
                traced, self.graph_break = compiled.check(self.backend, place)
                checks += traced
            self.checks += checks
            return True
        return False

    def _repeats(self, busy: Case) -> None:
        """Whether it is deterministic. It need not be, but it must run, unless there is not enough memory."""
        if self._failed() or not self._takes(busy):
            return
        subject = Subject(self.backend, busy, "called again")
        with self._refusing(busy):
            try:
                same = right.deterministic(subject)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                return
            failed = [check for check in subject.checks if not check.passed]
            self.deterministic = None if failed else same
            self.checks += failed

    def _takes(self, case: Case) -> bool:
        """Whether the backend says that it takes the case. `unsupported_reasons` must not raise."""
        try:
            reasons = list(self.backend.unsupported_reasons(case))
        except Exception as error:
            reasons = [f"unsupported_reasons raised {type(error).__name__}: {error}"]
            Subject(self.backend, case, "asked", checks=self.checks).note(
                "reasons", "unsupported_reasons", False, reasons[0]
            )
        if reasons:
            self.refusals[describe(case)] = reasons
        return not reasons

    @contextmanager
    def _refusing(self, case: Case) -> Iterator[None]:
        """Some cases only the kernel itself can refuse."""
        try:
            yield
        except Unsupported as error:
            self.refusals[describe(case)] = error.reasons

    def _refuses_the_run(self) -> list[str]:
        """Why the backend does not take the run's own case."""
        return self.refusals.get(describe(self.case), []) if self.case else []

    def _runs_nowhere(self) -> Certificate:
        """It takes no case at all, as it says itself, unless it failed before that."""
        if self._failed():
            return self.written("wrong", self._failed())
        return self.written("unsupported", list(next(iter(self.refusals.values()))))

    def _failed(self) -> list[str]:
        """Each failed check as a sentence."""
        return [
            f"{check.name}: {check.reason} [{check.variant}; {check.case}]"
            for check in self.checks
            if not check.passed
        ]

    def written(self, verdict: Verdict, reasons: list[str]) -> Certificate:
        """The certificate of what was found so far."""
        found = identity.device_name(self.device)
        software, code = identity.software(self.name, self.device), identity.code(self.name)
        return Certificate.model_validate(
            {
                "backend": self.name,
                "verdict": verdict,
                "reasons": reasons,
                "device": self.device,
                "device_name": found,
                "software": software,
                "code": code,
                "case": self.case,
                "key": identity.key_of(self.name, self.device, self.case),
                "kernels": self.kernels,
                "deterministic": self.deterministic,
                "graph_break": self.graph_break,
                "checks": self.checks,
                "not_looked_at": [f"{case}: {'; '.join(why)}" for case, why in self.refusals.items()],
                "seconds": perf_counter() - self.started,
                "created_at": now(),
            }
        )
