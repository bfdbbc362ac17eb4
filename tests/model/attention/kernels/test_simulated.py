"""The Hopper kernels' own text, run on the CPU in Gluon's stand-in: its numbers, and how its warps hand tiles over."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("triton", reason="needs triton: pip install 'assay-studies[dev]'")

from model.attention import custom
from model.attention.kernels.hopper import HEAD_DIMS
from tests.conftest import REPOSITORY, environment
from tests.model.attention.calls import CUDA

# Of the row that is most wrong: twice what was found.
TOLERANCE = {"bfloat16": 0.02, "float16": 0.004, "float8_e4m3fn": 0.08}
BF16, FP16 = {"dtype": "bfloat16"}, {"dtype": "float16"}
FP8 = {
    "dtype": "float8_e4m3fn",
    "causal": True,
    "head_dim": 128,
    "lengths": [300, 300],
    "heads": [4, 2],
    "batch": 2,
}
# Causal or not, ragged, grouped, with an offset, with programs of one block or several; each with something late.
CASES = [
    {**BF16, "causal": True, "lengths": [200, 200], "late": "stores"},
    {**FP16, "causal": False, "lengths": [130, 270], "heads": [4, 2], "late": "copies"},
    {**FP16, "causal": True, "lengths": [70, 170], "query_offset": 100, "deterministic": True, "late": "products"},
    {**BF16, "causal": True, "lengths": [65, 65], "heads": [3, 3], "processors": 100, "late": "warps"},
    {**BF16, "causal": False, "lengths": [1, 129], "deterministic": True},
    # exp2 of what a key beyond the last one scores (0) overflows, though no LSE is large.
    {**FP16, "causal": False, "lengths": [65, 127], "alike": True, "logits": 25},
]  # fmt: skip
CAUSAL = {**BF16, "head_dim": 128, "causal": True}
SHORT = {**CAUSAL, "head_dim": 64}
WIDE = {**CAUSAL, "head_dim": 256}
ONE_TILE = {**WIDE, "causal": False, "lengths": [64, 640], "heads": [1, 1], "late": "products"}  # of queries
STAGES_AGAIN = {
    **WIDE,
    "causal": False,
    "lengths": [320, 130],
    "late": "products",
}  # each holds several tiles
HUGE = {**CAUSAL, "alike": True, "logits": 1e7}
ONE_AFTER_THE_OTHER = {**FP16, "head_dim": 64, "causal": False, "lengths": [300, 900], "heads": [1, 1]}
# Warpgroups share a block of queries.
THREE = {**BF16, "head_dim": 64, "causal": False, "lengths": [400, 700], "consumers": 3}
# Rows whose maximum grows from tile to tile, by more than `_SLACK` and by less.
GROWING = [{**WIDE, **FP16, "logits": 6}, {**THREE, **FP16, "logits": 6}]
# Several batches, and lengths that are whole tiles.
WHOLE = {
    **BF16,
    "lengths": [256, 384],
    "query_offset": 128,
    "heads": [2, 1],
    "batch": 2,
    "deterministic": True,
    "causal": True,
}
WHOLE_16 = {**FP16, "causal": False, "lengths": [128, 256], "heads": [2, 1], "batch": 2}
UNSEEN = {**BF16, "causal": True, "lengths": [64, 400], "heads": [2, 2]}  # keys that no query sees
MIXED = {**BF16, "causal": True, "lengths": [256, 256], "batch": 2, "alike": True, "mixed": True}
FEW_PROGRAMS = {
    **BF16,
    "head_dim": 64,
    "causal": False,
    "lengths": [300, 300],
    "processors": 1,
    "late": "products",
    "seed": 1,
}
# One query, whose keys programs share: groups and none, a ragged last part, keys that it does not see, several batches.
ONE_QUERY = {
    **FP16,
    "head_dim": 128,
    "causal": True,
    "lengths": [1, 700],
    "query_offset": 699,
    "heads": [8, 2],
    "batch": 2,
    "processors": 16,
}
SHARED_KEYS = [
    ONE_QUERY,
    {**ONE_QUERY, "head_dim": 64, "lengths": [1, 1300], "query_offset": 1000, "heads": [6, 2], "late": "copies"},
    {**ONE_QUERY, **BF16, "head_dim": 256, "causal": False, "lengths": [1, 513], "heads": [3, 3], "late": "products"},
    {**ONE_QUERY, "causal": False, "lengths": [1, 900], "logits": 3, "late": "stores"},
    {**ONE_QUERY, "causal": False, "lengths": [1, 900], "heads": [200, 1], "late": "warps"},  # two blocks of rows
    {**ONE_QUERY, **BF16, "head_dim": 128, "dark": 400},  # parts whose weights are all zero
]  # fmt: skip
RISING = {**FP8, "logits": 4, "processors": 1}  # rows whose maximum grows from tile to tile
SEEDS = range(3)


Simulated = Callable[[list[dict]], list[dict]]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulated]:
    """Runs cases in one process, which imports torch and the kernels once."""
    if reasons := custom.lacking(CUDA):
        pytest.skip("; ".join(reasons))
    errors = tmp_path_factory.mktemp("simulated") / "stderr"
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            [sys.executable, "-m", "tests.model.attention.kernels.simulated"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=REPOSITORY, env=environment(),
        ) as process,
    ):  # fmt: skip

        def run(cases: list[dict]) -> list[dict]:
            assert process.stdin and process.stdout
            process.stdin.write(json.dumps(cases) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            assert line, errors.read_text()
            return json.loads(line)

        yield run


def wrong(case: dict, results: dict) -> list[str]:
    """The results that are wrong, or what would go wrong on a GPU."""
    if "fault" in results:
        return [results["fault"]]
    # The gradient of queries whose keys are all alike is 0, and its error of no account, but for NaN.
    limits = dict.fromkeys(results, TOLERANCE[case["dtype"]]) | ({"dq": 1e9} if case.get("alike") else {})
    return [name for name, result in results.items() if not result["error"] <= limits[name]]


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_the_kernels_compute_attention_whatever_comes_late(simulated: Simulated, head_dim: int) -> None:
    other_cases = [WHOLE, WHOLE_16, UNSEEN, MIXED, {**MIXED, "causal": False}]
    late = [{**CASES[1], "heads": [2, 1], "late": f"partition{number}"} for number in range(3)]
    cases = [{"head_dim": head_dim, **case} for case in [*CASES, *other_cases, *late]]
    for case, results in zip(cases, simulated(cases), strict=True):
        assert wrong(case, results) == [], case


@pytest.mark.parametrize("head_dim", [64, 128])
def test_numbers_of_8_bits_are_multiplied_with_their_scales_whatever_comes_late(
    simulated: Simulated, head_dim: int
) -> None:
    """The error is P's rounding to four bits: FA3's table 3 has 0.024 for its own."""
    changes = [{"late": late} for late in ("stores", "copies", "products", "warps")]
    changes += [{"causal": False, "lengths": [130, 270]}, {"lengths": [70, 170], "query_offset": 100}]
    changes += [{"causal": False, "lengths": [1, 129]}, {"logits": 4, "processors": 1}]
    cases = [{**FP8, "head_dim": head_dim, **change} for change in changes]
    for case, results in zip(cases, simulated(cases), strict=True):
        assert wrong(case, results) == [], case


def test_three_warpgroups_share_a_block_whichever_is_late(simulated: Simulated) -> None:
    cases = [{**THREE, "late": late} for late in ("stores", "copies", "products", "warps")]
    cases += [{**THREE, "causal": True, "query_offset": offset} for offset in (0, 300)]
    for case, results in zip(cases, simulated(cases), strict=True):
        assert wrong(case, results) == [], case


@pytest.mark.parametrize("case", GROWING, ids=["head dim 256", "three warpgroups"])
def test_rows_keep_their_reference_while_their_maximum_grows_little(simulated: Simulated, case: dict) -> None:
    no_slack = {**case, "module": "_forward", "old": "gl.constexpr(8.0)", "new": "gl.constexpr(0.0)"}
    result, exact_result = simulated([case, no_slack])
    assert result["o"]["error"] < 2 * exact_result["o"]["error"] < TOLERANCE["float16"]
    assert result["o"]["bits"] != exact_result["o"]["bits"]  # the case has such rows


def test_two_and_three_warpgroups_give_the_same_bits(simulated: Simulated) -> None:
    """A capture takes the kernel that is loaded, which may be the other one."""
    three, two = simulated([GROWING[1], {**GROWING[1], "consumers": 2}])
    assert three["o"]["bits"] == two["o"]["bits"]


def test_programs_share_the_keys_of_one_query_whatever_comes_late(simulated: Simulated) -> None:
    for case, results in zip(SHARED_KEYS, simulated(SHARED_KEYS), strict=True):
        assert wrong(case, results) == [], case
    alone, shared = simulated([{**ONE_QUERY, "processors": 1}, ONE_QUERY])
    assert alone["o"]["bits"] != shared["o"]["bits"], "sums of parts are rounded otherwise"
    assert shared["o"]["error"] < 1.5 * alone["o"]["error"], (
        "but none is rounded to 16 bits before it is added up"
    )


def test_very_large_logits_keep_their_gradients(simulated: Simulated) -> None:
    """A maximum of 1e7 and log2 of a sum would not fit into one float32 number."""
    cases = [{**HUGE, "head_dim": head_dim} for head_dim in HEAD_DIMS]
    for case, results in zip(cases, simulated(cases), strict=True):
        assert wrong(case, results) == [], case


@pytest.mark.parametrize(("head_dim", "module"), [(64, "_backward"), (256, "_backward_wide")])
def test_blocks_that_take_turns_give_the_same_bits_in_whatever_order_they_run(
    simulated: Simulated, head_dim, module
) -> None:
    """And blocks that do not wait for their turn give others: the float32 sums of dQ come in another order."""
    no_turns = {"module": module, "old": "wait_for_turn(turn, block)", "new": "pass"}
    case = {**ONE_AFTER_THE_OTHER, "head_dim": head_dim, "deterministic": True}
    cases = [{**case, "seed": seed} for seed in SEEDS]
    results = simulated(cases + [{**case, **no_turns} for case in cases])
    bits = [[entry["bits"] for entry in result.values()] for result in results]
    assert all(entry == bits[0] for entry in bits[: len(SEEDS)])
    assert any(entry != bits[0] for entry in bits[len(SEEDS) :])


# (file, what is replaced, by what, where it shows)
FAULTS = [
    # Tiles that are overwritten before all have read them.
    ("_forward", "    meet_at(_K_FREE + stage, ALL)\n            mbarrier", "    pass\n            mbarrier", {**CAUSAL, "late": "copies"}),
    ("_forward", "arrive_after(_of_first_columns(p), _K_FREE + stage, ALL)", "pass", CAUSAL),
    ("_forward", "tma.store_wait(0)  # the output", "# the output", {**CAUSAL, "late": "stores"}),
    ("_forward", "tma.store_wait(0)\n            mbarrier", "mbarrier", {**WIDE, "late": "stores"}),
    ("_forward", "if D < 256:\n            mbarrier", "if D < 512:\n            mbarrier", WIDE),
    ("_backward", "mbarrier.wait(dq_free.index(WHICH), (n & 1) ^ 1)", "pass", {**CAUSAL, "late": "stores"}),
    ("_backward", "tma.store_wait(1)\n            mbarrier", "mbarrier", {**CAUSAL, "late": "stores"}),
    ("_backward", "tma.store_wait(0)\n            mbarrier", "mbarrier", {**CAUSAL, "late": "stores"}),
    ("_backward", "meet_at(_Q_FREE + stage)", "pass", {**CAUSAL, "late": "copies"}),
    ("_backward", "stage * 2", "0 * 2", {**CAUSAL, "late": "products"}),
    ("_backward", "meet_at(_DS_FULL + total % 2 * 2, _PAIR)", "pass", {**CAUSAL, "late": "products"}),
    ("_backward_wide", "meet_at(_FREE + 1 - stage, _READERS)", "pass", {**WIDE, "late": "copies"}),
    ("_backward_wide", "meet_at(_P_FREE, _PAIR)\n        p_smem", "pass\n        p_smem", WIDE),
    ("_backward_wide", "meet_at(_DS_FREE + stage, _PAIR)\n        ds_smem", "pass\n        ds_smem", WIDE),
    ("_backward_wide", "dv = warpgroup_mma_wait(0, deps=(dv_pending,))\n        arrive_at(_FREE + stage, _READERS)", "arrive_at(_FREE + stage, _READERS)\n        dv = warpgroup_mma_wait(0, deps=(dv_pending,))", STAGES_AGAIN),
    ("_backward_wide", "dk = warpgroup_mma_wait(0, deps=(dk_pending,))\n        arrive_at(_FREE + stage, _READERS)", "arrive_at(_FREE + stage, _READERS)\n        dk = warpgroup_mma_wait(0, deps=(dk_pending,))", {**STAGES_AGAIN, "seed": 2}),
    ("_backward_wide", "dpt = warpgroup_mma_wait(0, deps=(dpt,))\n        arrive_at(_P_FREE, _PAIR)", "arrive_at(_P_FREE, _PAIR)\n        dpt = warpgroup_mma_wait(0, deps=(dpt,))", ONE_TILE),
    ("_backward_wide", "meet_at(_DS_FREE + n % 2, _PAIR)", "pass", WIDE),
    ("_backward_wide", "block * _KEYS, 0], q_smem.index(0))\n    tma.store_wait(0)", "block * _KEYS, 0], q_smem.index(0))", {**WIDE, "late": "stores"}),
    ("_backward_wide", "meet_at(_P_FREE, _PAIR)\n    do_smem", "pass\n    do_smem", ONE_TILE),
    # Products that are used too early, or given back too early.
    ("_forward", "s = warpgroup_mma_wait(1,", "s = warpgroup_mma_wait(2,", {**CAUSAL, "late": "products"}),
    ("_backward", "dk = warpgroup_mma_wait(0, deps=(dk_pending,))\n        arrive_at(_Q_FREE + stage)", "arrive_at(_Q_FREE + stage)\n        dk = warpgroup_mma_wait(0, deps=(dk_pending,))", {**CAUSAL, "late": "products"}),
    ("_backward", "dv, dq = warpgroup_mma_wait(0, deps", "dv, dq = warpgroup_mma_wait(1, deps", {**CAUSAL, "late": "products"}),
    # Fences, parities and turns.
    ("_forward", "fence_async_shared()\n            tma", "tma", CAUSAL),
    ("_backward", "fence_async_shared()\n            meet_at(_DS", "meet_at(_DS", CAUSAL),
    ("_backward", "fence_async_shared()\n            arrive_at(_DS", "arrive_at(_DS", SHORT),
    ("_backward", "fence_async_shared()\n        arrive_at(_DQ", "arrive_at(_DQ", CAUSAL),
    ("_backward", "meet_at(_DS_FULL, _PAIR)", "pass", CAUSAL),
    ("_backward", "meet_at(_DS_FULL + stage * 2 + WHICH, _PAIR)", "pass", SHORT),
    ("_backward", "meet_at(_DQ_FULL + 1, _PAIR)", "pass", CAUSAL),
    ("_backward", "meet_at(_DS_FULL + total % 2 * 2, _PAIR)", "meet_at(_DS_FULL + (total + 1) % 2 * 2, _PAIR)", {**SHORT, "lengths": [200, 300], "late": "partition1"}),
    ("_forward", "mbarrier.arrive(q_free.index(WHICH), count=1)\n        last", "mbarrier.arrive(q_free.index(1 - WHICH), count=1)\n        last", FEW_PROGRAMS),
    ("_backward_wide", "fence_async_shared()\n        arrive_at(_DS_FULL", "arrive_at(_DS_FULL", WIDE),
    ("_forward", "mbarrier.wait(k_full.index(stage), parity)\n            meet", "mbarrier.wait(k_full.index(stage), 1 - parity)\n            meet", CAUSAL),
    ("_forward", "mbarrier.wait(v_full.index(last_stage), last_parity)\n            if FP8", "if FP8", {**CAUSAL, "late": "copies"}),
    ("_forward", "return tile & 1, (tile >> 1) & 1", "return tile & 1, tile & 1", CAUSAL),
    ("_forward", "arrive_at(NEXT, _PAIR)\n        added = ", "added = ", CAUSAL),
    ("_forward", "arrive_at(NEXT, _PAIR)\n        added = ", "added = ", THREE),
    ("_forward", "    meet_at(_V_FREE + stage, ALL)\n            mbarrier", "    pass\n            mbarrier", {**THREE, "late": "copies"}),
    # Numbers.
    ("_forward", ".permute((0, 1, 3, 2, 4))", ".permute((0, 1, 2, 3, 4))", FP8),
    ("_forward", "gl.load(SCALES + 2 * pairs + pair)", "gl.load(SCALES + pairs + pair)", FP8),
    ("_forward", "* gl.load(SCALES + pairs + pair)", "* gl.load(SCALES + pair)", FP8),
    ("_forward", "pair = batch * (HEADS // GROUP) + head // GROUP", "pair = head // GROUP", FP8),
    ("_forward", "acc = acc * shrink_acc[:, None] + added\n", "acc = acc + added\n", RISING),
    ("_forward", "v_at = [batch, head // GROUP, 0, at]", "v_at = [0, head // GROUP, 0, at]", FP8),
    ("_forward", "_LIFT if FP8", "-_LIFT if FP8", FP8),
    ("_forward", "acc = _scale(added, shrink_acc) if SPARING", "acc = added if SPARING", GROWING[0]),
    ("_forward", "acc = _scale(added, shrink_acc) if SPARING", "acc = added if SPARING", GROWING[1]),
    ("_forward", "gl.constexpr(8.0)", "gl.constexpr(800.0)", GROWING[1]),
    ("_forward", "if SKEWED and cut", "if False and cut", {**CAUSAL, "query_offset": 30, "lengths": [170, 200]}),
    ("_forward", "at = first_key + (count", "at = (count", ONE_QUERY),
    ("_forward", "(batch * HEADS + head) * T_Q + row", "(batch * HEADS + head) + row", ONE_QUERY),
    ("_forward", "2 * plane + ((batch", "plane + ((batch", ONE_QUERY),
    ("_forward", "(count - 1) * KEYS, column, keys,", "(count - 1) * KEYS, column, T_K,", {**ONE_QUERY, "lengths": [1, 513], "query_offset": 512}),
    ("_forward", "column[None, :] < seen", "column[None, :] <= seen", CAUSAL),
    ("_backward", "query[None, :] >= first_to_see", "query[None, :] > first_to_see", CAUSAL),
    ("_forward", "(batch * HEADS + head) * T_STATS", "batch * HEADS * T_STATS", CAUSAL),
    ("_backward", "[batch, first_head // GROUP, block", "[batch, first_head, block", CAUSAL),
    ("_backward", "(0, 5, 2, 6, 4, 3, 7, 1, 8)", "(0, 5, 2, 6, 4, 3, 7, 8, 1)", CAUSAL),
    ("_backward", "- lost[None, :]", "", HUGE),
    ("_backward", "ragged | is_large", "ragged & is_large", HUGE),
    ("_backward", "part == 1, _SECOND", "part == 1, 0.0", {**CAUSAL, "alike": True, "logits": 25}),
    ("_backward", "stats_desc, [batch, head, place]", "stats_desc, [0, head, place]", {**MIXED, "head_dim": 128}),
    ("_backward_wide", "is_large(stats_smem, stage,", "is_large(stats_smem, 1 - stage,", {**MIXED, "head_dim": 256}),
    ("_backward", "[batch, first_head // GROUP, block", "[0, first_head // GROUP, block", {**WHOLE, "head_dim": 64}),
    ("_forward", "(batch * HEADS + head) * T_STATS", "head * T_STATS", {**WHOLE_16, "head_dim": 64}),
    ("_backward_wide", "total > 0", "total >= 0", {**UNSEEN, "head_dim": 256}),
    ("_backward", "(weights, less_delta,", "(weights, less_lse,", CAUSAL),
    ("_backward_wide", "- lost[None, :]", "", {**HUGE, "head_dim": 256}),
    ("_backward_wide", "ragged = (block + 1) * _KEYS > T_K", "ragged = False", {"head_dim": 256, **CASES[-1]}),
    ("_backward", "ragged = first_key + _OWN > T_K", "ragged = False", {"head_dim": 128, **CASES[-1]}),
    ("_backward", "next_tile(i, first, tiles, ORDERED)", "next_tile(i, first, tiles, False)", {**WHOLE, "head_dim": 128}),
    ("_backward_wide", "next_tile(i, first, tiles, ORDERED)", "next_tile(i, first, tiles, False)", {**WIDE, "deterministic": True}),
    ("_backward_wide", "column % 32", "column", WIDE),
    ("_backward_wide", "at + each * _PART", "at", WIDE),
]  # fmt: skip


def detecting_case(module: str, old: str, case: dict) -> dict:
    """The case without the backward, where a fault of the forward is not in what that is given."""
    needs_statistics = "T_STATS" in old
    return {**case, "backward": module != "_forward" or needs_statistics}


def test_only_the_fault_is_wrong_in_the_cases_that_find_faults(simulated: Simulated) -> None:
    cases: list[dict] = []
    for module, old, _, case in FAULTS:
        if (shortened_case := detecting_case(module, old, case)) not in cases:
            cases.append(shortened_case)
    for case, results in zip(cases, simulated(cases), strict=True):
        assert wrong(case, results) == [], case


def test_faults_of_the_kernels_are_found(simulated: Simulated) -> None:
    cases = [
        {**detecting_case(module, old, case), "module": module, "old": old, "new": new}
        for module, old, new, case in FAULTS
    ]
    for case, results in zip(cases, simulated(cases), strict=True):
        assert wrong(case, results), case
