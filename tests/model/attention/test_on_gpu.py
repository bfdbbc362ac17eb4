"""Every backend that runs on this GPU, held to model.attention.verify's rule: run by hand with `pytest -m gpu`.

tests/model/attention/verify/test_on_gpu.py holds whole trials; here are the shapes and ways of calling that they leave out.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from model import attention
from model.attention import Backend, Case
from model.attention.verify import accuracy, data
from model.attention.verify.call import Subject, call
from model.attention.verify.cases import Variant
from model.record import backends
from tests.model.attention.calls import drawn, off, run

pytestmark = [
    pytest.mark.gpu,
    # Shown, not fatal: compilers and other people's packages warn about matters of their own.
    pytest.mark.filterwarnings("default"),
]

CASES = [
    Case("cuda", "bfloat16", batch, length, heads=8, kv_heads=2, head_dim=128)
    for batch, length in [(1, 256), (1, 1024), (2, 256), (2, 1024)]
]


def _backend(name: str, case: Case) -> Backend:
    backend = attention.load(name)
    if reasons := backend.unsupported_reasons(case):
        pytest.skip("; ".join(reasons))
    return backend


def _assert_right(name: str, variant: Variant) -> None:
    _assert_passed(name, accuracy.check(_backend(name, variant.case), variant))


def _assert_passed(name: str, checks: list) -> None:
    right_checks = [check for check in checks if check.name == "right"]
    print(name, {check.what: f"{check.measured:.2f} of {check.tolerance:.2f}" for check in right_checks})  # noqa: T201
    assert {check.what for check in right_checks} == {"o", "dq", "dk", "dv"}
    assert not [check.reason for check in checks if not check.passed]


@pytest.mark.parametrize("name", backends.names())
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"B{c.batch}-T{c.sequence_length}")
def test_a_gpu_backend_is_as_exact_as_the_rounding(name: str, case: Case) -> None:
    _assert_right(name, Variant(case))


@pytest.mark.parametrize("name", backends.names())
def test_a_gpu_backend_takes_strided_inputs(name: str) -> None:
    """As a fused QKV projection gives them: heads side by side in one tensor, cut apart."""
    _assert_right(name, Variant(CASES[2], layout="fused qkv"))


@pytest.mark.parametrize("name", backends.names())
def test_a_gpu_backend_runs_compiled(name: str) -> None:
    """Under torch.compile, with inductor's kernels around it, each is as exact as without."""
    case = CASES[0]

    @torch.compile
    def seam(backend, case, q, k, v):
        return attention.attend(backend, case, q * 1.0, k, v) * 1.0

    subject = Subject(attention.for_compile(_backend(name, case)), case, "compiled", seam)
    solution = data.solved_call(Variant(case))
    subject.numbers("right", call(subject, solution.inputs), solution.exact, solution.plain)
    _assert_passed(name, subject.checks)


def _custom(case: Case) -> Callable:
    backend = _backend("custom", case)
    return lambda q, k, v: attention.attend(backend, case, q, k, v)


@pytest.fixture
def deterministic():
    previous = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(previous)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("length", [333, 4096])
def test_custom_gives_the_same_bits_again_when_told_to(deterministic, length, head_dim, causal) -> None:
    case = replace(CASES[0], batch=2, sequence_length=length, head_dim=head_dim, causal=causal)
    attend, inputs = _custom(case), drawn(case)
    first_run = run(attend, inputs)
    for _ in range(4):
        repeat = run(attend, inputs)
        assert all(torch.equal(repeat[step], first_run[step]) for step in first_run)


@pytest.mark.parametrize("length", [128, 384, 1024, 4096])
def test_custom_gives_the_same_again(length: int) -> None:
    """Five runs on the same inputs: O, dK and dV to the last bit, dQ up to the order of its additions.

    A race between the kernel's warps shows as a run that differs. 1e-3 is a quarter of one rounding of
    bfloat16: dQ is summed in float32 in any order, then rounded once.
    """
    case = replace(CASES[0], batch=2, sequence_length=length)
    attend, inputs = _custom(case), drawn(case)
    first_run = run(attend, inputs)
    for _ in range(4):
        repeat = run(attend, inputs)
        for step in ("o", "dk", "dv"):
            assert torch.equal(repeat[step], first_run[step]), step
        assert off(repeat["dq"], first_run["dq"]) < 1e-3


@pytest.mark.parametrize("length", [127, 384, 4096])
def test_portable_gives_the_same_bits_each_time_forward_and_backward(length: int) -> None:
    case = replace(CASES[0], batch=2, sequence_length=length)
    backend, inputs = _backend("portable", case), drawn(case)
    first_run, *repeats = (run(backend.attend, inputs, True) for _ in range(5))
    for repeat in repeats:
        for step, x in first_run.items():
            assert torch.equal(repeat[step], x), step


@pytest.mark.parametrize("kv_heads", [8, 4, 1])
def test_custom_shares_key_heads_in_groups_of_any_size(kv_heads: int) -> None:
    _assert_right("custom", Variant(replace(CASES[3], kv_heads=kv_heads), seed=1))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize(
    ("length", "causal"), [(1, True), (65, True), (333, True), (201, False), (2048, False)]
)
def test_custom_takes_any_length_with_a_mask_and_without(length, causal, head_dim, dtype) -> None:
    case = replace(CASES[2], sequence_length=length, causal=causal, head_dim=head_dim, dtype=dtype)
    _assert_right("custom", Variant(case, seed=3))


MANY = replace(CASES[0], batch=3, sequence_length=1999, heads=16, kv_heads=4)  # 768 blocks of 128 queries


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("offset", [0, 100, 128])
def test_custom_is_right_where_a_program_does_several_blocks(head_dim, offset) -> None:
    case = replace(MANY, head_dim=head_dim, queries=MANY.sequence_length - offset)
    _assert_right("custom", Variant(case, seed=4))


@pytest.mark.parametrize("causal", [True, False])
def test_custom_is_right_where_three_warpgroups_share_a_block(causal) -> None:
    case = replace(MANY, batch=2, sequence_length=4100, heads=8, head_dim=64, causal=causal)
    _assert_right("custom", Variant(case, seed=4))
    if causal:  # without a mask, a gradient of fewer queries than keys has no certificate
        _assert_right("custom", Variant(replace(case, queries=4000), seed=4))


@pytest.mark.parametrize(
    "changes", [{}, {"head_dim": 64, "causal": False}], ids=["causal", "three warpgroups"]
)
def test_a_graph_captured_before_any_other_call_of_its_lengths_gives_the_same_bits(changes) -> None:
    """No table of blocks can be copied to the GPU in a capture, so that each block has a program of its own."""
    case = replace(MANY, sequence_length=1777, **changes)
    attend, short_case = _custom(case), replace(case, sequence_length=100)
    warm_up, inputs = drawn(short_case), drawn(case)
    _custom(short_case)(warm_up.q, warm_up.k, warm_up.v)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        captured = attend(inputs.q, inputs.k, inputs.v)
    graph.replay()
    assert torch.equal(captured, attend(inputs.q, inputs.k, inputs.v))


@pytest.mark.parametrize(
    "case",
    [CASES[1], replace(CASES[1], head_dim=256), replace(CASES[1], sequence_length=4200, head_dim=64)],
    ids=["128", "256", "three warpgroups"],
)
def test_custom_takes_peaked_attention(case: Case) -> None:
    """The softmax is nearly one-hot, and its maximum moves from tile to tile."""
    _assert_right("custom", Variant(case, "large logits", seed=2))


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_custom_ends_and_gives_what_is_not_a_number_where_its_inputs_are_not(head_dim) -> None:
    """A training run that diverges must end, and its loss must say so: warps wait for barriers that depend on P."""
    case = replace(MANY, head_dim=head_dim)
    inputs = drawn(case)
    inputs.k[:, 70] = float("nan")  # which the queries before it do not see
    o = _custom(case)(inputs.q, inputs.k, inputs.v)
    torch.cuda.synchronize()
    assert o[:, :70].isfinite().all()
    assert o[:, 70:].isnan().all()
