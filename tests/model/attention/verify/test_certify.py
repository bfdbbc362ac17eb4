"""Honest backends get a certificate, and each planted wrong one is refused by the check that is there for it."""

import itertools
import sys
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from model import attention
from model.attention import Kernels, Launches
from model.attention.verify import accuracy, cases, habits, identity
from model.attention.verify.call import Subject
from model.attention.verify.certificate import Check
from model.record import backends
from model.record.case import Case
from model.training import certify as module
from model.training.certify import certify, certify_case
from tests.model.attention.verify import planted, planted_habits, planted_numbers, planted_shapes  # noqa: F401  they plant
from tests.model.attention.verify.planted import CASE, PLANTED, refused_by

HONEST = ("auto", "flash", "math", "tiled")
EXAMPLE = Path(__file__).parents[4] / "examples" / "backend"


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_backend_is_right(name: str, monkeypatch) -> None:
    monkeypatch.setitem(cases.DTYPES, "cpu", ("float32", "bfloat16"))  # float16 has a test of its own
    certificate = certify(name, "cpu")
    assert certificate.verdict == "right", certificate.reasons
    assert refused_by(certificate) == []
    assert {"right", "finite", "own kernels", "same loss", "same gradients", "checkpoint"} <= {
        check.name for check in certificate.checks
    }
    assert certificate.kernels["forward"] and certificate.kernels["backward"]
    assert certificate.deterministic is True
    assert certificate.graph_break == (
        "in a graph, inductor would replace MATH with a FlashAttention kernel" if name == "math" else ""
    )
    assert certificate == type(certificate).model_validate_json(certificate.model_dump_json())


def test_flash_and_auto_leave_16_bits_on_a_cpu_out_and_say_why() -> None:
    """PyTorch's CPU kernel adds up dK and dV in 16 bits: model.attention.verify found it, and the backends refuse it."""
    for name in ("auto", "flash"):
        certificate = certify_case(name, planted.HALF)
        assert certificate.verdict == "unsupported"
        assert "sums dK and dV in bfloat16" in certificate.reasons[0]


def test_the_16_bit_kernel_that_they_refuse_would_be_found_wrong(monkeypatch) -> None:
    flash = attention.load("flash")
    backend = replace(flash, unsupported_reasons=lambda case: [])
    load = attention.load
    monkeypatch.setattr(
        attention, "load", lambda requested: backend if requested == "flash" else load(requested)
    )
    case = Case("cpu", "bfloat16", 1, 520, 8, 1, 32)
    certificate = certify_case("flash", case)
    assert certificate.verdict == "wrong" and "right" in refused_by(certificate)
    assert {check.what for check in certificate.checks if not check.passed} <= {"dk", "dv"}


@pytest.mark.parametrize("name", ["math", "tiled"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_run_in_16_bits_gets_its_certificate(name: str, dtype: str) -> None:
    certificate = certify_case(name, replace(CASE, dtype=dtype))
    assert certificate.verdict == "right", certificate.reasons
    assert certificate.case == replace(CASE, dtype=dtype)


def test_a_right_backend_of_somebody_else_is_right(plant) -> None:
    plant("theirs", planted.right_backend)
    assert certify_case("theirs", CASE).reasons == []


def test_results_that_differ_in_the_last_bit_from_call_to_call_are_right_and_said_to_differ(plant) -> None:
    calls = itertools.count()

    def attend(q, k, v, causal):
        o = planted.right(q, k, v, causal)
        return o * (1 + 2**-23 * (next(calls) % 2))

    plant("restless", replace(PLANTED["scale-one-over-d"].backend, attend=attend))
    certificate = certify_case("restless", CASE)
    assert (certificate.verdict, certificate.deterministic) == ("right", False), certificate.reasons


# ------------------------------------------------------------------------------------------ the planted


class _Refused(Exception):
    """A check that is there for the planted fault has failed."""

    def __init__(self, checks: list[Check]) -> None:
        self.checks = checks


@pytest.fixture
def brief(monkeypatch):
    """Ends a trial after the first habit or stage in which a check of this name fails: no later check takes that back.

    The backends outside PLANTED here are tried to the end. What else a certificate says has tests of its own.
    """
    monkeypatch.setattr(identity, "code", lambda name: "0")
    monkeypatch.setattr(identity, "software", lambda name, device: {})

    def stop_after(fault: set[str]) -> None:
        def stop_where_it_failed(checks: list[Check], unreported: list[Check]) -> None:
            if any(check.name in fault for check in checks if not check.passed):
                raise _Refused(unreported)

        class Brief(module._Trial):
            def _stage(self, what: str, case: Case) -> None:
                stop_where_it_failed(self.checks, [])
                super()._stage(what, case)

            def _verdict(self, *variants):
                try:
                    return super()._verdict(*variants)
                except _Refused as refusal:
                    self.checks += refusal.checks
                    return "wrong", self._failed()

        def check_habit(*arguments):
            checks = original_check(*arguments)
            stop_where_it_failed(checks, checks)
            return checks

        original_check = habits._tried
        monkeypatch.setattr(habits, "_tried", check_habit)
        monkeypatch.setattr(module, "_Trial", Brief)

    return stop_after


@pytest.mark.refused
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_backend_is_refused(name: str, plant, brief, by_inductor) -> None:
    candidate = PLANTED[name]
    plant(name, candidate.backend)
    brief(candidate.fault)
    precision = torch.get_float32_matmul_precision()
    try:
        certificate = certify_case(name, candidate.case)
    finally:
        torch.set_float32_matmul_precision(precision)
    assert certificate.verdict == "wrong"
    assert candidate.fault & set(refused_by(certificate)), certificate.reasons
    assert all(certificate.reasons)
    assert bool(by_inductor) == candidate.case.compile
    print(f"{name}: {', '.join(refused_by(certificate))}")  # noqa: T201


@pytest.mark.refused
@pytest.mark.parametrize("start", [0, 3])
def test_a_backend_that_is_wrong_on_every_sixth_call_is_refused(start: int, plant) -> None:
    """Every call of a trial is held to the tolerance, whatever it is made for."""
    calls = itertools.count(start)

    def attend(q, k, v, causal):
        return planted.right(q, k, v, causal) * (3 if next(calls) % 6 == 5 else 1)

    plant("now-and-then", replace(planted.right_backend, attend=attend))
    assert certify_case("now-and-then", CASE).verdict == "wrong"


@pytest.mark.refused
def test_a_repeated_call_is_held_to_the_tolerance(plant) -> None:
    calls = itertools.count()

    def attend(q, k, v, causal):
        return planted.right(q, k, v, causal) * (3 if next(calls) == 2 else 1)

    subject = Subject(replace(planted.right_backend, attend=attend), CASE)
    assert not accuracy.deterministic(subject)
    assert {check.name for check in subject.checks if not check.passed} == {"right each time"}


@pytest.mark.refused
@pytest.mark.parametrize(
    "condition",
    [
        lambda case: case.sequence_length % 512 == 0,
        lambda case: case.batch > 3,
        lambda case: case.heads > 8,
        lambda case: case.sequence_length % 512 == 0 and case.batch > 3 and case.heads > 8,
    ],
    ids=["multiples of 512", "batches over 3", "more than 8 heads", "all three"],
)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_verify_looks_at_shapes_that_runs_have(condition, device: str) -> None:
    for compiles in (False, True):
        assert [variant for variant in cases.covering(device, compiles) if condition(variant.case)]


SETTINGS = """
import torch
from model.attention import Backend
from tests.model.attention.verify.planted import BY_SOFTMAX, right, takes_all
torch.set_float32_matmul_precision("high")
backend = Backend("sets something when it is imported", takes_all, right, BY_SOFTMAX)
"""


@pytest.mark.refused
def test_a_setting_that_the_import_of_a_backend_changes_is_seen(tmp_path, registered) -> None:
    (tmp_path / "imported_settings.py").write_text(SETTINGS)
    registered({"settings": "imported_settings:backend"})
    try:
        assert refused_by(certify_case("settings", CASE)) == ["settings unchanged"]
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.refused
def test_a_backend_cannot_see_the_certifier(plant) -> None:
    visible_names = set()

    def attend(q, k, v, causal):
        visible_names.update(name for name in sys.modules if name.startswith("model.attention.verify."))
        visible_names.update(
            name
            for name in ("certify", "habits", "accuracy")
            if hasattr(sys.modules["model.attention.verify"], name)
        )
        return planted.right(q, k, v, causal)

    plant("curious", replace(planted.right_backend, attend=attend))
    assert certify_case("curious", CASE).verdict == "right"
    assert visible_names <= {"model.attention.verify.certificate", "model.attention.verify.identity"}
    assert "model.training.certify" in sys.modules


@pytest.mark.fault
def test_memory_that_the_trial_alone_lacks_is_not_the_runs_outcome(plant) -> None:
    """It holds two calls at once. What it left out for that is in the certificate."""
    alive: list[weakref.ref[torch.Tensor]] = []

    def attend(q, k, v, causal):
        alive[:] = [entry for entry in alive if entry() is not None]
        if alive and q.requires_grad and q.shape[1] == 300:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 64.00 GiB")
        o = planted.right(q, k, v, causal)
        alive.append(weakref.ref(o))
        return o

    plant("large", replace(planted.right_backend, attend=attend))
    certificate = certify_case("large", replace(CASE, sequence_length=300))
    assert certificate.verdict == "right", certificate.reasons
    assert any("for lack of memory" in entry for entry in certificate.not_looked_at)


def test_a_trial_says_how_far_it_is(plant) -> None:
    stages: list[tuple[int, int, str]] = []
    certify_case("tiled", replace(CASE, sequence_length=32), lambda *stage: stages.append(stage))
    assert [number for number, _, _ in stages] == list(range(1, len(stages) + 1))
    assert {total for _, total, _ in stages} == {len(stages)}
    assert stages[0][2] == "plain, B2 T32 H4 K2 D32 float32 causal"


def test_a_planted_backend_among_our_own_files_is_refused_too(plant, monkeypatch) -> None:
    plant("fast", PLANTED["sdpa-under-another-name"].backend)
    monkeypatch.setattr(backends, "foreign", lambda: ())
    monkeypatch.setattr("model.attention.verify.identity.code", lambda name: "0")
    assert "no other's kernels" in refused_by(certify_case("fast", CASE))


@pytest.mark.parametrize("name", ["math", "tiled", "second"])
def test_operators_of_pytorch_belong_to_nobody_whoever_of_our_files_declares_them(
    name: str, plant, monkeypatch
) -> None:
    """Two files that declare them wrong neither each other nor PyTorch's own backends, however wide."""
    everything = Kernels("^aten::", "^aten::|Backward[0-9]$", operators=True)
    plant("wide", replace(planted.right_backend, launches=Launches(cpu=everything)))
    plant("second", planted.right_backend)
    monkeypatch.setattr(backends, "foreign", lambda: ())
    monkeypatch.setattr("model.attention.verify.identity.code", lambda name: "0")
    certificate = certify_case(name, CASE)
    assert certificate.verdict == "right", certificate.reasons
    assert any(check.what == "forward: wide" for check in certificate.checks)


def test_a_function_of_one_of_our_files_is_still_its_own(plant, monkeypatch) -> None:
    """Among operators of PyTorch in its declaration, too."""
    wide = Kernels("^(aten::matmul|_Own)$", "^_OwnBackward$", operators=True)
    plant("wide", replace(planted.right_backend, launches=Launches(cpu=wide)))
    plant("copied", replace(planted.right_backend, attend=planted.own, launches=Launches(cpu=planted.OWN)))
    monkeypatch.setattr(backends, "foreign", lambda: ())
    monkeypatch.setattr("model.attention.verify.identity.code", lambda name: "0")
    reasons = certify_case("copied", CASE).reasons
    assert any("runs _Own, which wide declares for itself" in reason for reason in reasons), reasons


def test_our_own_backend_that_runs_another_of_ours_is_refused(monkeypatch) -> None:
    math, load = attention.load("math"), attention.load
    swapped = replace(load("tiled"), attend=math.attend)
    monkeypatch.setattr(
        attention, "load", lambda requested: swapped if requested == "tiled" else load(requested)
    )
    certificate = certify_case("tiled", CASE)
    assert {"own kernels", "no other's kernels"} <= set(refused_by(certificate))


def test_memory_that_does_not_suffice_is_no_verdict(plant) -> None:
    def attend(q, k, v, causal):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 64.00 GiB")

    plant("big", replace(planted.right_backend, attend=attend))
    with pytest.raises(torch.OutOfMemoryError):
        certify_case("big", CASE)


def test_reasons_that_raise_are_a_fault(plant) -> None:
    def reasons(case):
        raise KeyError("driver")

    plant("rude", replace(planted.right_backend, unsupported_reasons=reasons))
    certificate = certify_case("rude", CASE)
    assert certificate.verdict != "right"
    assert "unsupported_reasons raised KeyError" in certificate.reasons[0]


# ---------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "name", ["cudnn", "custom", "efficient", "flash1", "flash2", "flash3", "flash4", "flex", "portable"]
)
def test_a_backend_that_cannot_run_here_is_unsupported_with_its_reasons(name: str) -> None:
    certificate = certify(name, "cpu")
    assert certificate.verdict == "unsupported"
    assert any("--set device=cuda" in reason for reason in certificate.reasons)


def test_heads_that_cannot_be_grouped_are_unsupported() -> None:
    certificate = certify_case("math", replace(CASE, heads=3))
    assert certificate.verdict == "unsupported" and "cannot share" in certificate.reasons[0]


# ------------------------------------------------------------------------------------------ the example


def test_the_example_backend_gets_its_certificate(registered) -> None:
    """examples/backend, found through the entry point that its pyproject.toml declares."""
    import tomllib

    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    registered(project["entry-points"]["assay.attention"], EXAMPLE)
    (name,) = project["entry-points"]["assay.attention"]
    assert name in backends.names()
    certificate = certify_case(name, CASE)
    assert certificate.verdict == "right", certificate.reasons
    assert certify_case(name, replace(CASE, dtype="float16")).verdict == "unsupported"
