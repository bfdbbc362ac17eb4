"""The Hopper kernels compile for sm_90a, which needs no GPU, and the compiler does what they count on."""

import heapq
import json
import subprocess
import sys
from functools import cache
from itertools import product

import pytest

pytest.importorskip("triton", reason="needs triton: pip install 'assay-studies[dev]'")

from model.attention import custom
from model.attention.kernels import hopper
from tests.conftest import REPOSITORY, environment
from tests.model.attention.calls import CUDA

CASES = [
    {"head_dim": head_dim, "dtype": dtype, "causal": causal, **more}
    for head_dim in hopper.HEAD_DIMS
    for dtype, causal, more in (
        ("bfloat16", True, {}),
        ("float16", True, {"query_offset": 100, "deterministic": True}),
        ("bfloat16", False, {}),
        ("float8_e4m3fn", True, {}),
        ("float8_e4m3fn", False, {}),
    )
    if dtype != "float8_e4m3fn" or head_dim <= 128
]
SHARED_BYTES = 227 * 1024  # of a block on Hopper


@cache
def _compiled() -> list[dict[str, dict]]:
    """Slow: a few seconds a case where Triton's cache has none of them."""
    if reasons := custom.lacking(CUDA):
        pytest.skip("; ".join(reasons))
    completed = subprocess.run(
        [sys.executable, "-m", "tests.model.attention.kernels.compiled", json.dumps(CASES)],
        cwd=REPOSITORY, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "Cannot find ptxas" in completed.stderr:
        pytest.skip("needs ptxas, the assembler that Triton's wheels for x86-64 and ARM Linux bring")
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


def _with_backward() -> list[tuple[dict, dict]]:
    cases = zip(CASES, _compiled(), strict=True)
    return [(case, kernels) for case, kernels in cases if "_backward_kernel" in kernels]


def test_every_kernel_compiles_for_hopper_with_its_products_asynchronous_and_in_its_memory() -> None:
    for case, kernels in zip(CASES, _compiled(), strict=True):
        backward = {"_backward_before_kernel", "_backward_kernel", "_backward_after_kernel"}
        fp8 = case["dtype"] == "float8_e4m3fn"
        others = {"_transpose_kernel"} if fp8 else {*backward, "_merge_kernel"}
        assert set(kernels) == {"_forward_kernel", *others}
        for name, report in kernels.items():
            # C7510 to C7515: ptxas runs wgmma one after another, for one reason or another.
            assert report["serialized"] == [], (case, name)
            assert report["shared_bytes"] <= SHARED_BYTES, (case, name)
            assert report["spilled_bytes"] <= 300, (case, name)  # some, outside the loops, cost nothing
            # Launched while the pass before it runs, it waits for that before it loads.
            assert report["early"] == report["waits"] == (name == "_backward_kernel"), (case, name)


def test_products_of_8_bits_are_the_tensor_cores_own_and_a_transpose_stores_whole_words() -> None:
    for case, kernels in zip(CASES, _compiled(), strict=True):
        if case["dtype"] == "float8_e4m3fn":
            assert kernels["_forward_kernel"]["products"] == "e4m3.e4m3"
            assert kernels["_transpose_kernel"]["bytes_stored"] == 0
            assert kernels["_transpose_kernel"]["spilled_bytes"] == 0
        else:
            assert (
                kernels["_forward_kernel"]["products"]
                == {"bfloat16": "bf16.bf16", "float16": "f16.f16"}[case["dtype"]]
            )


def test_parts_of_numbers_are_split_by_exact_products() -> None:
    """PTX's quotient may be two units in the last place off, which the parts are to hold. The LSE alone is divided."""
    for case, kernels in _with_backward():
        assert kernels["_backward_before_kernel"]["divisors"] == (case["head_dim"] < 256), case


def test_each_four_registers_are_added_where_their_layout_says() -> None:
    """At head dim 256. One address does for a thread's 32 numbers, so that their order must be as `_add` expects."""
    for case, kernels in _with_backward():
        additions = kernels["_backward_kernel"]["additions"]
        assert bool(additions) == (case["head_dim"] == 256), case
        if additions:
            (first, second, *rest), bytes_on = additions
            assert (first, second) == ([0, 1], [0, 2]), "four numbers follow each other"
            expected = [
                sum(4 * (256 * r + c) for i, (r, c) in enumerate(rest) if n >> i & 1) for n in range(8)
            ]
            assert bytes_on == expected


class Launched(Exception):
    pass


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors say that they are on a GPU; a launch says that it was reached."""
    import torch

    def launch(*_, **__):
        raise Launched

    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    monkeypatch.setattr(hopper, "launch", launch)
    monkeypatch.setattr(hopper, "_processors", lambda device: 132)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


SHAPES = {"q": (2, 8, 4, 64), "k": (2, 9, 2, 64), "v": (2, 9, 2, 64)}


def _forward(changes: dict, dtype: str = "bfloat16", **call: object) -> None:
    import torch

    hopper.forward(
        *(torch.zeros(x, dtype=getattr(torch, dtype)) for x in (SHAPES | changes).values()), **call
    )


@pytest.mark.refused
@pytest.mark.parametrize(
    ("changes", "call"),
    [
        ({name: (*shape[:3], 96) for name, shape in SHAPES.items()}, {}),
        ({"q": (2, 8, 3, 64)}, {}),
        ({"k": (2, 8, 2, 64)}, {}),
        ({"v": (1, 9, 2, 64)}, {}),
        ({"k": (2, 0, 2, 64), "v": (2, 0, 2, 64)}, {}),
        ({"k": (2, 9, 0, 64), "v": (2, 9, 0, 64)}, {}),
        ({}, {"query_offset": -1}),
        ({}, {"dtype": "float32"}),
    ],
)
def test_what_the_kernel_would_read_wrongly_is_refused_before_a_launch(
    on_gpu, changes: dict, call: dict
) -> None:
    with pytest.raises(ValueError, match="the Hopper kernel takes"):
        _forward(changes, **call)


@pytest.mark.refused
@pytest.mark.parametrize("kind", ["bfloat16", "short", "one head", "transposed", "unaligned"])
def test_statistics_that_are_not_the_forwards_are_refused_before_a_launch(on_gpu, kind: str) -> None:
    """Hooks of saved tensors can give back other ones."""
    import torch

    q = torch.zeros(2, 8, 4, 64, dtype=torch.bfloat16)
    stats = torch.zeros(2, 2, 4, 8)
    with pytest.raises(Launched):
        hopper.backward(q, q, q, q, q, stats)
    spoiled = {
        "bfloat16": stats.bfloat16(), "short": stats[..., :4].contiguous(), "one head": stats[:, :, :1],
        "transposed": stats.transpose(2, 3).contiguous().transpose(2, 3),
        "unaligned": torch.zeros(stats.numel() + 1)[1:].view_as(stats),
    }  # fmt: skip
    with pytest.raises(ValueError, match="takes the statistics of its forward"):
        hopper.backward(q, q, q, q, q, spoiled[kind])


@pytest.mark.refused
def test_numbers_of_8_bits_come_with_scales_and_others_without(on_gpu) -> None:
    import torch

    wide = torch.zeros(2, 8, 4, 64, dtype=torch.bfloat16)
    narrow, scales = wide.to(hopper.FP8), torch.ones(3, 2, 4)
    with pytest.raises(Launched):
        hopper.forward(narrow, narrow, narrow, scales_3BK=scales)
    for other_scales in (None, scales[:, :1], scales.double(), torch.ones(3, 4, 2).transpose(1, 2)):
        with pytest.raises(
            ValueError, match=r"takes scales, dense float32 \(3, 2, 4\), with torch.float8_e4m3fn"
        ):
            hopper.forward(narrow, narrow, narrow, scales_3BK=other_scales)
    with pytest.raises(ValueError, match="takes no scales but with"):
        hopper.forward(wide, wide, wide, scales_3BK=scales)
    long = torch.zeros(2, 8, 4, 256, dtype=hopper.FP8)
    with pytest.raises(ValueError, match="up to head dim 128"):
        hopper.forward(long, long, long, scales_3BK=scales)
    with pytest.raises(ValueError, match="in a forward"):
        hopper.backward(narrow, narrow, narrow, narrow, narrow, torch.zeros(2, 2, 4, 8))


def test_each_tile_of_each_head_counts_its_own_turns() -> None:
    turn_at = hopper._backward.turn_at.fn
    places = [
        turn_at(b, h, 128 * t, 300, 2, 3, 128) for b in range(2) for h in range(2 * 3) for t in range(3)
    ]
    assert places == list(range(2 * 6 * 3))


def test_a_dimension_of_one_may_have_any_stride(on_gpu) -> None:
    """TMA refuses strides that are no multiples of 16 bytes, used or not."""
    import torch

    strided = torch.zeros(64, dtype=torch.bfloat16).as_strided((1, 1, 1, 64), (3, 3, 3, 1))
    assert hopper.tiles(strided, 64).strides == [64, 64, 64, 1]


def test_launches_of_different_kernels_never_share_a_key(on_gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """`launch` takes a compiled kernel by its key alone: it must say all that the kernel is compiled for."""
    import torch

    signatures: dict[tuple, set] = {}

    def launch(kernel, key, _, *arguments, **__):
        if hasattr(kernel, "params"):  # the interpreter's have none
            signatures.setdefault((kernel, key), set()).add(
                tuple(map(_compiled_for, kernel.params, arguments))
            )

    monkeypatch.setattr(hopper, "launch", launch)
    monkeypatch.setattr(hopper, "launched", lambda *_: False)
    calls = product(
        (64, 128, 256), ("bfloat16", "float16"), (True, False), (True, False), (0, 100), (130, 9000)
    )
    for head_dim, dtype, causal, deterministic, offset, length in calls:
        q = torch.empty(1, length, 4, head_dim, dtype=getattr(torch, dtype))
        k = torch.empty(1, length + offset, 2, head_dim, dtype=q.dtype)
        o, stats = hopper.forward(q, k, k, causal, offset)
        hopper.backward(o, q, k, k, o, stats, causal, offset, deterministic)
        hopper.forward(q[:, :1], k, k, causal, length - 1)
        if head_dim <= 128:
            q_8, k_8 = q.to(hopper.FP8), k.to(hopper.FP8)
            hopper.forward(q_8, k_8, k_8, causal, offset, torch.ones(3, 1, 2))
    assert len(signatures) > 50
    assert [key for key, kernels in signatures.items() if len(kernels) > 1] == []


def _compiled_for(parameter, argument) -> object:
    if parameter.is_constexpr:
        return argument
    tensor = getattr(argument, "base", argument)  # of a descriptor, which has a box as well
    return argument is None, str(getattr(tensor, "dtype", "")), str(getattr(argument, "block_shape", ""))


@pytest.mark.refused
def test_rows_that_tma_cannot_address_are_refused_before_a_launch(on_gpu) -> None:
    import torch

    q = torch.zeros(2, 8, 4, 128, dtype=torch.bfloat16)[..., ::2]
    with pytest.raises(ValueError, match="dense rows"):
        hopper.forward(q, q, q)


@pytest.mark.refused
def test_tensors_of_a_cpu_are_refused() -> None:
    with pytest.raises(ValueError, match="of a GPU"):
        _forward({})


def test_what_the_kernel_takes_is_launched(on_gpu) -> None:
    for call in ({}, {"causal": False}, {"query_offset": 1}, {"dtype": "float16"}):
        with pytest.raises(Launched):
            _forward({}, **call)


def test_a_table_of_blocks_is_made_once_and_not_while_a_graph_is_captured(monkeypatch) -> None:
    import torch

    monkeypatch.setattr(hopper, "_processors", lambda device: 3)
    monkeypatch.setattr(hopper, "_tables", {})
    lengths = (torch.device("cpu"), 1000, 1100, 100, 4, 2, 128, 128, True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert hopper._dealt(*lengths) is None
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    dealt = hopper._dealt(*lengths)
    assert dealt is hopper._dealt(*lengths)
    numbers = [number for count, *row in dealt.tolist() for number in row[:count]]
    assert sorted(numbers) == list(range(8 * 4))  # 8 blocks of 4 heads


@pytest.mark.parametrize(
    ("tokens", "programs"), [(1000, 12), (256, 8)], ids=["", "no program without a block"]
)
def test_blocks_are_dealt_to_more_programs_beside_other_processes(monkeypatch, tokens, programs) -> None:
    import torch

    monkeypatch.setattr(hopper, "_processors", lambda device: 3)
    monkeypatch.setattr(hopper, "_tables", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    lengths = (torch.device("cpu"), tokens, 1000, 0, 4, 2, 128, 128, True)
    single_table = hopper._dealt(*lengths)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    shared_table = hopper._dealt(*lengths)
    assert (len(single_table), len(shared_table)) == (3, programs)
    numbers = [number for count, *row in shared_table.tolist() for number in row[:count]]
    assert sorted(numbers) == list(range(-(-tokens // 128) * 4))
    assert all(count > 0 for count, *_ in shared_table.tolist())
    work = hopper.schedule.work_of_blocks(-(-tokens // 128), *lengths[2:])
    loads = [sum(work[number] for number in row[:count]) for count, *row in shared_table.tolist()]
    assert loads == sorted(loads, reverse=True)


@pytest.mark.parametrize(
    ("blocks", "heads", "at_once"), [(32, 64, 8), (16, 64, 16), (64, 16, 4), (256, 8, 1), (8, 256, 32)]
)
def test_more_programs_end_as_early_as_one_a_processor(monkeypatch, blocks, heads, at_once) -> None:
    """Where no other process takes a processor, by the work of each block."""
    import torch

    monkeypatch.setattr(hopper, "_processors", lambda device: 132)
    monkeypatch.setattr(hopper, "_tables", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    T, lengths = 128 * blocks, (128 * blocks, 0, heads, at_once, 128, 128, True)
    work = hopper.schedule.work_of_blocks(blocks, *lengths)
    rows = hopper._dealt(torch.device("cpu"), T, *lengths).tolist()
    assert len(rows) == 4 * 132
    free = [0] * 132
    for count, *row in rows:
        heapq.heapreplace(free, free[0] + sum(work[number] for number in row[:count]))
    assert max(free) <= 1.02 * sum(work) / 132


@pytest.mark.parametrize("keys", [64, 128])
def test_lengths_with_as_many_tiles_share_a_table_that_is_right_for_each(monkeypatch, keys) -> None:
    import torch

    monkeypatch.setattr(hopper, "_processors", lambda device: 3)
    monkeypatch.setattr(hopper, "_tables", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    for tokens in range(385, 513):
        for offset in (1, keys - 1, keys):
            lengths = (tokens + offset, offset, 4, 2, 128, keys, True)
            dealt = hopper._dealt(torch.device("cpu"), tokens, *lengths)
            work = hopper.schedule.work_of_blocks(4, *lengths)  # of the lengths as they are
            assert [row[:count] for count, *row in dealt.tolist()] == hopper.schedule.deal(work, 3)
    assert len(hopper._tables) <= 3


def test_without_a_mask_all_lengths_of_keys_share_a_table(monkeypatch) -> None:
    import torch

    monkeypatch.setattr(hopper, "_processors", lambda device: 3)
    monkeypatch.setattr(hopper, "_tables", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    tables = [
        hopper._dealt(torch.device("cpu"), 500, T, 0, 4, 2, 128, 128, False) for T in range(1, 2000, 100)
    ]
    assert all(table is tables[0] for table in tables)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch):
    """What is launched: (consumers, whether each block has a program of its own). `capture` begins a CUDA graph."""
    import torch

    keys: list[tuple[object, ...]] = []
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    monkeypatch.setattr(hopper, "_processors", lambda device: 2)
    monkeypatch.setattr(hopper, "_tables", {})
    monkeypatch.setattr(hopper, "launched", lambda kernel, key: key in keys)

    def launch(kernel, key, grid, *args, **_):
        assert key[-1] == (args[12] is None)
        keys.append(key)

    monkeypatch.setattr(hopper, "launch", launch)

    def run_forward(
        tokens: int, causal: bool = True, capture: bool = False, dtype: str = "bfloat16", head_dim: int = 64
    ):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capture)
        start = len(keys)
        q = torch.zeros(1, tokens, 2, head_dim, dtype=getattr(torch, dtype))
        hopper.forward(q, q, q, causal)
        return [key[-2:] for key in keys[start:]]

    return run_forward


def test_the_kernel_that_a_capture_needs_is_launched_before_the_first_of_several_blocks(launches) -> None:
    """No kernel can be loaded during a capture. There, lengths without a table need the one of one block."""
    assert launches(256) == [(2, True), (2, False)]
    assert launches(256) == [(2, False)]
    assert launches(600, capture=True) == [(2, True)]


def test_a_capture_takes_a_kernel_that_is_loaded(launches) -> None:
    assert launches(256) == [(2, True), (2, False)]
    assert launches(100, dtype="float16") == [(2, True)]
    assert launches(256, dtype="float16", capture=True) == [
        (2, True)
    ]  # the table is there, its kernel is not
    assert launches(100, causal=False) == [(2, True)]
    assert launches(1152, causal=False, capture=True) == [(2, True)]  # three would share a block
    assert launches(1152, causal=False) == [(3, False)]
    assert launches(1152, causal=False, capture=True) == [(3, False)]


def test_nothing_is_launched_twice_in_the_first_call(launches) -> None:
    assert launches(64) == [(2, True)]
    assert launches(64, causal=False, capture=True) == [
        (2, True)
    ]  # a capture without a call before cannot load it


def test_keys_of_one_query_are_shared_but_in_a_capture_that_cannot_load_the_kernels(launches) -> None:
    import torch

    def kinds(capture: bool, cached: int = 1000) -> list[str]:
        """Of a query in a cache of so many keys with one head, on two processors."""
        launches(2, capture=capture)
        launched = []
        q, k = (torch.zeros(1, length, 1, 128, dtype=torch.float16) for length in (1, cached))
        with pytest.MonkeyPatch.context() as patch:
            launch = hopper.launch
            patch.setattr(hopper, "launched", lambda kernel, key: (kernel, key) in loaded)
            patch.setattr(hopper, "launch", lambda kernel, key, *_, **__: launched.append((kernel, key)))
            hopper.forward(q, k, k, True, cached - 1)
            assert launch is not hopper.launch
        if not capture:
            loaded.extend(launched)
        return [kernel.__name__ for kernel, _ in launched]

    loaded: list[object] = []
    assert kinds(capture=True) == ["_forward_kernel"]
    first_call = kinds(capture=False)
    assert first_call == ["_forward_kernel", "_forward_kernel", "_merge_kernel"], "and the last results count"
    assert kinds(capture=True) == kinds(capture=False) == ["_forward_kernel", "_merge_kernel"]
    plain = loaded[0]
    assert kinds(capture=True, cached=100) == ["_forward_kernel"] and loaded[0] is plain
    shared = ["_forward_kernel", "_merge_kernel"]
    assert all(kinds(capture=True, cached=keys) == shared for keys in (999, 1001, 1024, 1025)), (
        "whatever the offset"
    )


@pytest.mark.parametrize(
    ("head_dim", "causal", "tokens", "heads", "sharing"),
    [
        (64, False, 2048, 256, 3),
        (
            64,
            False,
            2048,
            16,
            2,
        ),  # 176 blocks of 192 queries on 132 processors: the second round is nearly empty
        (64, True, 8192, 32, 3),
        (64, True, 2048, 256, 2),
        (128, False, 8192, 64, 2),
        (256, True, 8192, 64, 2),
    ],
)
def test_three_warpgroups_share_a_block_where_that_pays(head_dim, causal, tokens, heads, sharing) -> None:
    assert hopper._forward.consumers(head_dim, causal, tokens, tokens, heads, 132) == sharing
