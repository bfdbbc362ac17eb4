"""One certificate serves calls of many sizes; one that is wrong at a size of its own is found where it is timed."""

from dataclasses import replace

import pytest

from model import attention
from model.attention.timing.measure import measure
from model.attention.verify import cases
from model.attention.verify.certificate import case_fields, describe, key
from model.record.case import Case
from model.training.certify import certify_case
from tests.model.attention.verify import planted

CASE = Case("cpu", "float32", batch=2, sequence_length=96, heads=4, kv_heads=2, head_dim=16)
ALIKE = [
    replace(CASE, batch=7), replace(CASE, sequence_length=4096), replace(CASE, heads=32, kv_heads=16),
]  # fmt: skip
UNLIKE = [
    replace(CASE, head_dim=32), replace(CASE, kv_heads=4), replace(CASE, causal=False), replace(CASE, kv_heads=1),
    replace(CASE, dtype="bfloat16"), replace(CASE, heads=2, kv_heads=1), replace(CASE, compile=True),
]  # fmt: skip


def test_calls_that_differ_in_size_alone_share_a_case_and_others_do_not():
    shared_case = cases.shared(CASE)
    assert all(cases.shared(case) == shared_case for case in ALIKE)
    assert len({shared_case, *map(cases.shared, UNLIKE)}) == 1 + len(UNLIKE)
    assert describe(shared_case) == "any size, 2 query heads per KV head, D16 float32 causal"


def test_a_certificate_of_one_size_is_not_taken_for_that_of_many():
    shared_case = cases.shared(CASE)
    one_size = replace(shared_case, any_size=False)
    assert key("math", "code", shared_case, None, {}) != key("math", "code", one_size, None, {})
    assert "any_size" not in case_fields(one_size)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_lengths_on_and_off_the_multiples_of_tiles_and_several_batches_are_tried(device):
    case_of_one_size = replace(cases.shared(replace(CASE, device=device)), any_size=False)
    tried_cases = [
        variant.case
        for variant in (*cases.around(case_of_one_size, False), *cases.sizes(case_of_one_size, False))
    ]
    lengths = {case.sequence_length for case in tried_cases}
    assert {length % 64 == 0 for length in lengths} == {True, False}
    assert min(lengths) < 192 and max(lengths) > 4096 and any(192 < length < 768 for length in lengths)
    assert {1, 2, 3, 5} <= {case.batch for case in tried_cases}


@pytest.mark.parametrize("causal", [True, False])
def test_the_sizes_make_custom_run_with_two_and_with_three_warpgroups_to_a_block(causal):
    forward = pytest.importorskip("model.attention.kernels.hopper._forward", reason="needs triton")
    shared_case = cases.shared(replace(CASE, device="cuda", dtype="bfloat16", head_dim=64, causal=causal))
    shared_case = replace(shared_case, any_size=False)
    tried_cases = [
        entry.case for entry in (*cases.around(shared_case, False), *cases.sizes(shared_case, False))
    ]
    consumer_counts = {
        forward.consumers(
            64, causal, entry.sequence_length, entry.sequence_length, entry.batch * entry.heads, 132
        )
        for entry in tried_cases
    }
    assert consumer_counts == {2, 3}


def only_at(lengths, spoil):
    """Right, except at some lengths."""

    def attend(q, k, v, causal):
        o = planted.right(q, k, v, causal)
        return spoil(o, q, k, v) if q.shape[1] in lengths else o

    return attention.Backend("planted", lambda case: [], attend, planted.BY_SOFTMAX)


def all_too_large(o, q, k, v):
    return 1.05 * o


def gradient_of(name):
    """The output is right, and one gradient is too large."""

    def spoil(o, q, k, v):
        tensors = {"q": q, "k": k, "v": v}
        tensors[name] = 1.05 * tensors[name] - 0.05 * tensors[name].detach()
        return planted.right(*tensors.values(), True)

    return spoil


WRONG = [(all_too_large, "o"), *((gradient_of(name), f"d{name}") for name in "qkv")]


@pytest.mark.fault
@pytest.mark.parametrize(("spoil", "step"), WRONG, ids=["output", "dq", "dk", "dv"])
def test_a_backend_that_is_wrong_at_one_length_alone_is_found_where_it_is_timed(plant, spoil, step):
    backend = only_at({96}, spoil)
    plant("planted", backend)
    assert certify_case("planted", cases.shared(CASE)).verdict == "right"
    times = {
        length: measure({"planted": backend}, replace(CASE, sequence_length=length), 0, 3).times[-1]
        for length in (95, 96)
    }
    assert times[95].outcome == "completed" and len(times[95].seconds) == 3
    assert times[96].outcome == "wrong" and f"{step} is off by" in times[96].reason
    assert times[96].reason.startswith("in round ") and not times[96].seconds and times[96].checked is None


@pytest.mark.fault
@pytest.mark.parametrize("lengths", [range(1, 192), range(192, 768), range(768, 10**6)], ids=str)
def test_a_backend_that_is_wrong_over_a_stretch_of_lengths_gets_no_certificate(plant, lengths):
    plant("planted", only_at(lengths, all_too_large))
    assert certify_case("planted", cases.shared(CASE)).verdict == "wrong"
