"""Put a backend on trial, and write down what was found.

certify("flash", "cuda")        all that it supports: `runner verify`
certify_case("flash", case)     one run's shape and precision, and what breaks kernels near it: the gate
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter

from model import attention
from model.attention import Backend, Case
from model.errors import Unsupported
from model.record import now
from model.verify import cases, compiled, data, identity, launches, right, same_model
from model.verify.call import Subject, is_out_of_memory
from model.verify.cases import Variant
from model.verify.certificate import Certificate, Check, Verdict, describe


def certify(name: str, device: str) -> Certificate:
    """A certificate for all that the backend supports on this device.

    Raises:
        UserError: there is no such backend, or it is none.
        torch.OutOfMemoryError, MemoryError, RuntimeError: memory does not suffice.
    """
    backend = attention.load(name)
    return _Trial(name, backend, device, cases.covering(device, backend.compiles), cases.base(device)).held()


def certify_case(name: str, case: Case) -> Certificate:
    """A certificate for a run: its own shape first, then what breaks kernels near it.

    Raises:
        UserError: there is no such backend, or it is none.
        torch.OutOfMemoryError, MemoryError, RuntimeError: memory does not suffice. At the run's own shape
            that is the run's outcome.
    """
    backend = attention.load(name)
    variants = cases.around(case, backend.compiles)
    trial = _Trial(name, backend, case.device, variants, [each.case for each in variants[1:]], case)
    try:
        return trial.held()
    finally:
        data.known.cache_clear()  # the run needs the memory


def without_trial(name: str, device: str, reason: str) -> Certificate:
    """The certificate of a backend whose trial ended without an answer, as in a crash: it is wrong."""
    return _Trial(name, attention.load(name), device, [], []).written("wrong", [reason])


class _Trial:
    """One backend, the variants to look at, and small cases for habits, kernels and the model."""

    def __init__(
        self,
        name: str,
        backend: Backend,
        device: str,
        variants: list[Variant],
        small: list[Case],
        case: Case | None = None,
    ) -> None:
        self.name, self.backend, self.device, self.case = name, backend, device, case
        self.variants, self.small = variants, small
        self.checks: list[Check] = []
        self.kernels: dict[str, list[str]] = {}
        self.graph_break: str | None = None
        self.deterministic: bool | None = None
        self.refusals: dict[str, list[str]] = {}
        self.started = perf_counter()

    def held(self) -> Certificate:
        """Everything that the backend says it supports, unless it does not support the run itself."""
        allowed = [each for each in self.variants if self._takes(each.case)]
        before = right.settings()
        if not self._own_refusal():
            for each in allowed:
                self._look(each.case, partial(right.check, self.backend, each))
        if refused := self._own_refusal():
            return self.written("unsupported", refused)
        places = [*self.small, *(each.case for each in allowed)]
        if not any(
            self._takes(place) and self._look(place, partial(self._in_depth, place)) for place in places
        ):
            return self._nowhere()
        busy = self.case or cases.busy(self.device)
        if not self._failed() and self._takes(busy):
            self._look(busy, partial(self._again, busy))
        self.checks += right.unchanged(self.backend, self.case or places[0], before)
        return self.written("wrong" if self._failed() else "right", self._failed())

    def _own_refusal(self) -> list[str]:
        """Why the backend does not take the run itself."""
        return self.refusals.get(describe(self.case), []) if self.case else []

    def _nowhere(self) -> Certificate:
        """The backend runs no case at all, by its own word, unless it failed before it came to that."""
        if self._failed():
            return self.written("wrong", self._failed())
        return self.written("unsupported", list(next(iter(self.refusals.values()))))

    def _look(self, case: Case, check: Callable[[], list[Check]]) -> bool:
        """Add what a check finds; False where the kernel itself refuses the case, which only it may know."""
        try:
            self.checks += check()
        except Unsupported as error:
            self.refusals[describe(case)] = error.reasons
            return False
        return True

    def _in_depth(self, small: Case) -> list[Check]:
        """Habits, model, graph and kernels, at a small shape or the run's."""
        checks = right.habits(self.backend, small) + same_model.check(self.name, self.backend, small)
        launched, self.kernels = launches.check(self.name, self.backend, self.case or small)
        checks += launched
        if all(check.passed for check in checks):  # what is wrong by itself is not traced for seconds
            traced, self.graph_break = compiled.check(self.backend, small)
            checks += traced
        return checks

    def _again(self, busy: Case) -> list[Check]:
        """Being deterministic is no duty, and a small GPU may be too small to find out; running is one."""
        subject = Subject(self.backend, busy, "called again")
        try:
            same = right.deterministic(subject)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return []
        failed = [check for check in subject.checks if not check.passed]
        self.deterministic = None if failed else same
        return failed

    def _takes(self, case: Case) -> bool:
        """By its own word, which must be a list of reasons, whatever is asked."""
        try:
            reasons = list(self.backend.unsupported_reasons(case))
        except Exception as error:
            reasons = [f"unsupported_reasons raised {type(error).__name__}: {error}"]
            self.checks.append(
                Check(
                    name="reasons",
                    what="unsupported_reasons",
                    case=describe(case),
                    variant="asked",
                    passed=False,
                    reason=reasons[0],
                )
            )
        if reasons:
            self.refusals[describe(case)] = reasons
        return not reasons

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
