"""Put a backend on trial, and write down what was found.

certify("flash", "cuda")        all that it supports: `runner verify`
certify_case("flash", case)     one run's shape and precision, and what breaks kernels near it: the gate
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from time import perf_counter
from typing import Any

from model import attention
from model.attention import Backend, Case
from model.attention.verify import accuracy, cases, data, dropout, habits, identity, launches, surroundings
from model.attention.verify.call import Subject, is_out_of_memory
from model.attention.verify.cases import Variant
from model.attention.verify.certificate import Certificate, Check, Verdict, describe
from model.record.errors import Unsupported
from model.record.records import now
from model.training import same_model

Tell = Callable[[int, int, str], None]  # stages begun, of how many, and what this one looks at


def certify(name: str, device: str, tell: Tell = lambda *_: None) -> Certificate:
    """A certificate for all that the backend supports on this device, but numbers of 8 bits.

    Those are another computation, with a verdict of their own: `certify_case` gives it.

    Raises:
        UserError: there is no such backend, or it is not a `Backend`.
        torch.OutOfMemoryError, MemoryError, RuntimeError: there is not enough memory.
    """
    before = surroundings.settings()  # importing the backend may change them
    trial = _Trial(name, attention.load(name), device, before, tell)
    return trial.held(cases.covering(device, trial.backend.compiles), cases.base(device))


def certify_case(name: str, case: Case, tell: Tell = lambda *_: None) -> Certificate:
    """A certificate for a run: its own shape first, then what breaks kernels near it.

    For a case of `any_size`, several sizes are checked, and the first takes the place of the run's own.

    Raises:
        UserError: there is no such backend, or it is not a `Backend`.
        torch.OutOfMemoryError, MemoryError, RuntimeError: there is not enough memory. At the run's own shape
            that is the run's outcome.
    """
    before = surroundings.settings()
    square = replace(case.alone, any_size=False, dropout=0.0)
    trial = _Trial(name, attention.load(name), case.device, before, tell, square, asked=case)
    own, *near = cases.around_fp8(square) if case.fp8 else cases.around(square, trial.backend.compiles)
    sizes = cases.sizes(square, trial.backend.compiles) if case.any_size else []
    try:
        return trial.held([own, *near, *sizes], [variant.case for variant in near])
    finally:
        if not case.any_size:  # a shared certificate's are small, and the next backend needs them
            data.solution.cache_clear()  # the run needs the memory


def without_trial(name: str, device: str, reason: str) -> Certificate:
    """The certificate of a backend whose trial gave no answer, for example in a crash: it is wrong."""
    return _Trial(name, attention.load(name), device, {}).written("wrong", [reason])


@dataclass
class _Trial:
    """One backend, and what was found out about it so far.

    Attributes:
        before: the settings of the process before the backend was imported.
        case: the run's training step or prompt; None: all that the backend supports.
        asked: the same, with the tokens that the run decodes after it.
        refusals: why it does not take a case, by the case's description.
        skipped: what was left out for lack of memory, or could not be told on a busy machine.
        begun, stages: how far the trial is.
        compiled: `model.attention.verify.compiled`, if the trial needs it.
        place: the small shape that was checked in depth.
    """

    name: str
    backend: Backend
    device: str
    before: dict[str, Any]
    tell: Tell = lambda *_: None
    case: Case | None = None
    asked: Case | None = None
    checks: list[Check] = field(default_factory=list)
    refusals: dict[str, list[str]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    begun: int = 0
    stages: int = 0
    compiled: Any = None
    place: Case | None = None
    kernels: dict[str, list[str]] = field(default_factory=dict)
    decodes_by: dict[str, list[str]] = field(default_factory=dict)
    graph_break: str | None = None
    deterministic: bool | None = None
    started: float = field(default_factory=perf_counter)

    def held(self, variants: list[Variant], small: list[Case]) -> Certificate:
        """Check the numbers of all variants, then everything else at the first place that it takes.

        Args:
            small: the places to try before those of the variants.
        """
        variants = cases.of_8_bits(self.backend, variants)
        allowed = [variant for variant in variants if self._takes(variant.case)]
        if allowed and (self.case is None or self.case.compile):
            # Dynamo comes with it, which takes seconds.
            self.compiled = import_module("model.attention.verify.compiled")
        with surroundings.hidden():
            verdict, reasons = self._verdict(variants, allowed, small)
        return self.written(verdict, reasons)

    def _verdict(
        self, variants: list[Variant], allowed: list[Variant], small: list[Case]
    ) -> tuple[Verdict, list[str]]:
        if refused := self._refuses_the_run():
            return "unsupported", refused
        allowed += self._elsewhere(variants, allowed)
        decoding = cases.decoding(self.asked) if self.asked else []
        self.stages = len(allowed) + len(decoding) + bool(decoding) + 4 + len(self._dropouts())
        if self.case:
            self.stages += self.case.compile + (self.case != small[0])
        for place, variant in enumerate(allowed):
            self._stage(str(variant), variant.case)
            with self._refusing(variant.case), self._sparing(variant.case if place else None):
                self.checks += accuracy.check(self.backend, variant)

        # Calls with one query, forward only: nothing is trained. To refuse one is to refuse the run.
        for variant in decoding:
            self._stage(f"decoding, {variant}", variant.case)
            with self._refusing(self.case or variant.case):
                self.checks += accuracy.check(self.backend, variant)
        if decoding and not self._failed() and not self._refuses_the_run():
            last = decoding[0].case
            self._stage("decoding, its kernels, and token after token", last)
            launched, kernels = launches.check(self.name, self.backend, last, self.skipped)
            self.checks += launched + habits.check_decoding(self.backend, self.asked or last)
            self.decodes_by = {"decoding": kernels["forward"]}
        if refused := self._refuses_the_run():
            return "unsupported", refused

        places = [*small, *(variant.case for variant in allowed)]
        if not any(self._takes(place) and self._in_depth(place) for place in places):
            # It takes no case at all, or failed before that showed.
            if self._failed():
                return "wrong", self._failed()
            return "unsupported", list(next(iter(self.refusals.values())))
        self._at_the_runs_shape()
        self._repeats(self.case or cases.busy(self.device))
        self.checks += surroundings.check(self.backend, self.case or places[0], self.before)
        return "wrong" if self._failed() else "right", self._failed()

    def _stage(self, what: str, case: Case) -> None:
        self.begun += 1
        self.tell(self.begun, max(self.stages, self.begun), f"{what}, {describe(case)}")

    def _elsewhere(self, variants: list[Variant], allowed: list[Variant]) -> list[Variant]:
        """Each kind of data that was not tried in a precision, because its own shape was refused."""
        untried: dict[tuple[str, str], Variant] = {}
        tried = {(variant.case.dtype, variant.data) for variant in allowed}
        for dtype in {variant.case.dtype for variant in allowed}:
            places = (x for x in cases.elsewhere(dtype, allowed, self.case) if not self._answer(x))
            missed = [
                variant
                for variant in variants
                if (dtype, variant.data) not in tried and variant.case.dtype == dtype
            ]
            if missed and (place := next(places, None)):
                untried |= {(dtype, variant.data): Variant(place, variant.data) for variant in missed}
        return cases.of_8_bits(self.backend, [*untried.values()])

    def _in_depth(self, place: Case) -> bool:
        """Habits, model, graph, and kernels (at the run's shape); False if the kernel refuses the place."""
        with self._refusing(place):
            self._stage("repeated, interleaved and odd calls", place)
            checks = habits.check(self.backend, place)
            if not place.fp8:  # with which no model is trained
                self._stage("a small llama", place)
                checks += same_model.check(self.name, self.backend, place)
            self._stage("its kernels", self.case or place)
            launched, self.kernels = launches.check(self.name, self.backend, self.case or place, self.skipped)
            checks += launched
            for probability in self._dropouts():
                dropping = dropout.small(place, probability)
                if self._takes(dropping):
                    self._stage("dropout", dropping)
                    checks += dropout.check(self.backend, dropping)
            if self.case is None and all(check.passed for check in checks):
                traced, self.graph_break = self.compiled.check(self.backend, place)
                checks += traced
            self.checks += checks
            self.place = place
            return True
        return False

    def _dropouts(self) -> tuple[float, ...]:
        """The run's; of all that the backend supports, a small one and the one with the most noise."""
        if self.asked:
            return (self.asked.dropout,) if self.asked.dropout else ()
        return (1 / 8, 1 / 2) if self.backend.supports and self.backend.supports.dropout else ()

    def _at_the_runs_shape(self) -> None:
        """Some faults show only there. Not for a backend that is wrong already: this may take a minute."""
        if self.case is None or self._failed():
            return
        with self._refusing(self.case), self._sparing(self.case):
            if self.case != self.place:
                self._stage("repeated, interleaved and odd calls", self.case)
                for checks in habits.check_at_the_runs_shape(self.backend, self.case):
                    self.checks += checks
            if self.case.compile:
                self._stage("compiled by inductor", self.case)
                traced, self.graph_break = self.compiled.check(self.backend, self.case)
                self.checks += traced

    def _repeats(self, busy: Case) -> None:
        """Whether it is deterministic. It need not be, but these calls must run if memory suffices."""
        if self._failed() or not self._takes(busy):
            return
        self._stage("the same call again", busy)
        subject = Subject(self.backend, busy, "called again")
        with self._refusing(busy):
            try:
                same = accuracy.deterministic(subject)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                return
            failed = [check for check in subject.checks if not check.passed]
            self.deterministic = None if failed else same
            self.checks += failed

    def _takes(self, case: Case) -> bool:
        """Whether the backend says that it takes the case; its reasons are kept."""
        if reasons := self._answer(case):
            self.refusals[describe(case)] = reasons
        return not reasons

    def _answer(self, case: Case) -> list[str]:
        """`unsupported_reasons` must not raise, unless memory runs out."""
        try:
            asked = self.asked if self.asked and case == self.case else case
            return attention.refusals(self.backend, asked)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            reason = f"unsupported_reasons raised {type(error).__name__}: {error}"
            Subject(self.backend, case, "asked", checks=self.checks).note(
                "reasons", "unsupported_reasons", False, reason
            )
            return [reason]

    @contextmanager
    def _sparing(self, case: Case | None) -> Iterator[None]:
        """Skip later calls at the run's own shape that lack memory: only the first call's lack counts."""
        try:
            yield
        except Exception as error:
            if case is None or case != self.case or not is_out_of_memory(error):
                raise
            self.skipped.append(f"{describe(case)}: some ways to call it, for lack of memory")

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

    def _failed(self) -> list[str]:
        """Each failed check as a sentence."""
        return [
            f"{check.name}: {check.reason} [{check.variant}; {check.case}]"
            for check in self.checks
            if not check.passed
        ]

    def written(self, verdict: Verdict, reasons: list[str]) -> Certificate:
        """The certificate of what was found so far."""
        device_name = identity.device_name(self.device)
        software, code = identity.software(self.name, self.device), identity.code(self.name)
        return Certificate.model_validate(
            {
                "backend": self.name,
                "verdict": verdict,
                "reasons": reasons,
                "device": self.device,
                "device_name": device_name,
                "software": software,
                "code": code,
                "case": self.asked,
                "key": identity.key_of(self.name, self.device, self.asked),
                "kernels": self.kernels | self.decodes_by,
                "deterministic": self.deterministic,
                "graph_break": self.graph_break,
                "checks": self.checks,
                "not_looked_at": [f"{case}: {'; '.join(why)}" for case, why in self.refusals.items()]
                + self.skipped,
                "seconds": perf_counter() - self.started,
                "created_at": now(),
            }
        )
