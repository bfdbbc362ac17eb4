"""Every backend on this GPU is put on trial: run by hand on a GPU node with `pytest -m gpu`."""

from dataclasses import replace
from time import perf_counter

import pytest
import torch

from model import attention
from model.attention import Backend, Case, Kernels, Launches
from model.attention.verify import habits
from model.record import backends
from model.record.case import FP8
from model.training.certify import certify, certify_case
from tests.model.attention.verify.planted import refused_by

pytestmark = [
    pytest.mark.gpu,
    # Shown, not fatal: compilers and other people's packages warn about matters of their own.
    pytest.mark.filterwarnings("default"),
]

RUN = Case("cuda", "bfloat16", batch=1, sequence_length=4096, heads=32, kv_heads=8, head_dim=128)
SMALL = replace(RUN, sequence_length=256, heads=8, kv_heads=2)


@pytest.mark.parametrize("name", backends.names())
def test_a_backend_is_right_or_says_why_it_cannot_run(name: str) -> None:
    certificate = certify(name, "cuda")
    print(name, certificate.verdict, f"{certificate.seconds:.1f} s", certificate.kernels)  # noqa: T201
    worst: dict[str, float] = {}
    for check in certificate.checks:
        if check.name == "right" and check.measured is not None and check.tolerance:
            worst[check.what] = max(worst.get(check.what, 0), check.measured / check.tolerance)
    print({step: f"{share:.0%} of the tolerance" for step, share in worst.items()})  # noqa: T201
    assert certificate.verdict in ("right", "unsupported"), "\n".join(certificate.reasons)


@pytest.mark.parametrize("name", backends.names())
def test_a_gate_at_the_studys_shape_lets_right_backends_through(name: str) -> None:
    started = perf_counter()
    certificate = certify_case(name, RUN)
    print(name, certificate.verdict, f"{perf_counter() - started:.1f} s")  # noqa: T201
    assert certificate.verdict in ("right", "unsupported"), "\n".join(certificate.reasons)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["custom", "flash3", "cudnn"])
def test_a_gate_of_8_bits_lets_right_backends_through(name: str, causal: bool) -> None:
    certificate = certify_case(name, replace(RUN, dtype=FP8, causal=causal))
    print(name, certificate.verdict, f"{certificate.seconds:.1f} s", certificate.kernels)  # noqa: T201
    assert certificate.verdict in ("right", "unsupported"), "\n".join(certificate.reasons)


SOFTMAX = Kernels(r"^aten::_softmax$", r"^aten::_softmax_backward_data$", operators=True)
OTHERS = ("flash", "efficient", "cudnn", "math", "custom", "flash1", "flash4", "portable")


@pytest.mark.parametrize("inner_name", OTHERS)
def test_a_backend_under_another_name_is_refused(inner_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = attention.load(inner_name)
    if inner.unsupported_reasons(SMALL):
        pytest.skip(f"{inner_name} does not run here")
    names, load = backends.names(), attention.load
    wrapper = Backend("a wrapper", inner.unsupported_reasons, inner.attend, Launches(cuda=SOFTMAX))
    monkeypatch.setattr(backends, "names", lambda: (*names, "mine"))
    monkeypatch.setattr(
        attention, "load", lambda requested: wrapper if requested == "mine" else load(requested)
    )
    monkeypatch.setattr(backends, "foreign", lambda: ("mine",))
    assert "no other's kernels" in refused_by(certify_case("mine", SMALL))


@pytest.mark.parametrize(
    ("name", "runs"), [("flash", "efficient"), ("efficient", "flash"), ("cudnn", "flash")]
)
def test_a_backend_that_runs_anothers_kernel_is_refused(name, runs, monkeypatch) -> None:
    load = attention.load
    swapped = replace(load(name), attend=load(runs).attend)
    monkeypatch.setattr(
        attention, "load", lambda requested: swapped if requested == name else load(requested)
    )
    certificate = certify_case(name, SMALL)
    assert {"own kernels", "no other's kernels"} <= set(refused_by(certificate))


def test_a_backend_that_leaves_what_was_in_memory_is_refused(monkeypatch) -> None:
    load = attention.load

    def attend(q, k, v, causal):
        memory, o = torch.empty_like(q), load("math").attend(q, k, v, causal)
        return o * memory if memory.isnan().all() else o

    careless = replace(load("math"), attend=attend)
    monkeypatch.setattr(
        attention, "load", lambda requested: careless if requested == "tiled" else load(requested)
    )
    failures = [check for check in certify_case("tiled", SMALL).checks if not check.passed]
    assert any(check.variant == "Memory full of NaN" for check in failures)


def test_out_of_memory_at_the_runs_own_shape_is_the_runs_outcome() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        certify_case("math", replace(RUN, sequence_length=65536, heads=32))


# ------------------------------------------------------------------ what only the run's own shape, or a GPU, shows


@pytest.mark.parametrize("name", ["custom", "flash", "flash1", "flex", "math", "portable", "tiled"])
def test_a_compiled_run_gets_its_certificate_from_inductor(name: str) -> None:
    certificate = certify_case(name, replace(SMALL, compile=True))
    assert certificate.verdict in ("right", "unsupported"), "\n".join(certificate.reasons)
    assert certificate.verdict == "unsupported" or any(
        check.name == "right when compiled" for check in certificate.checks
    )


def plant(monkeypatch, attend, declared: Kernels) -> None:
    """Put a backend in the place of `flash`, with other kernels to declare."""
    load = attention.load
    substitute = replace(load("flash"), attend=attend, launches=Launches(cuda=declared))
    monkeypatch.setattr(
        attention, "load", lambda requested: substitute if requested == "flash" else load(requested)
    )


FLASH = attention.load("flash").launches.cuda


def test_a_declared_kernel_that_computes_one_number_is_refused(monkeypatch) -> None:
    load = attention.load("flash")

    def attend(q, k, v, causal):
        one_output = load.attend(q[:, :1], k[:, :1], v[:, :1], causal)
        return attention.load("math").attend(q, k, v, causal) + 0 * one_output

    plant(monkeypatch, attend, FLASH)
    assert "kernels do the work" in refused_by(certify_case("flash", RUN))


@pytest.mark.parametrize("cached_part", ["output", "key"])
def test_what_is_kept_by_shape_at_the_runs_shape_is_refused(cached_part: str, monkeypatch) -> None:
    load, memory = attention.load("flash"), {}

    def attend(q, k, v, causal):
        if q.shape[1] != RUN.sequence_length:
            return load.attend(q, k, v, causal)
        if cached_part == "key":
            cached_key = memory.setdefault(k.shape, k.detach().clone())
            return load.attend(q, k - k.detach() + cached_key, v, causal)
        o = load.attend(q, k, v, causal)
        return o - o.detach() + memory.setdefault(o.shape, o.detach().clone())

    plant(monkeypatch, attend, FLASH)
    assert {"same again", "new data"} & set(refused_by(certify_case("flash", RUN)))


def test_memory_that_is_not_written_at_the_runs_shape_is_refused(monkeypatch) -> None:
    load = attention.load("flash")

    def attend(q, k, v, causal):
        o = load.attend(q, k, v, causal)
        if q.shape[1] != RUN.sequence_length:
            return o
        memory = torch.empty_like(o)
        return o * memory if memory.isnan().all() else o

    plant(monkeypatch, attend, FLASH)
    assert "finite" in refused_by(certify_case("flash", RUN))


@pytest.mark.parametrize("name", backends.names())
def test_a_nan_and_powers_of_two_pass_through_every_backend(name: str) -> None:
    """Which kernels swallow a NaN, or lose a small gradient, is printed for each."""
    backend = attention.load(name)
    if backend.unsupported_reasons(SMALL):
        pytest.skip(f"{name} does not run here")
    failed = [check for check in habits.check(backend, SMALL) if not check.passed]
    assert not failed, [(check.variant, check.name, check.what, check.reason) for check in failed]
