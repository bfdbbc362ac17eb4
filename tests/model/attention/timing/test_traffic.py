"""Bytes that calls move: the formulas, and what is read of ncu's output. The counting itself needs a GPU."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from model import attention
from model.attention.kernels import flash1
from model.attention.kernels.portable import tiles
from model.attention.timing import traffic
from model.record import backends
from model.record.case import Case
from model.record.errors import Interrupted
from model.record.kernels import Counted, KernelTime, Traffic
from model.record.traffic import Gpu, Moved, keys_read, rows_read, score_bytes

H100 = Gpu((9, 0), 132)
CASE = Case("cuda", "bfloat16", batch=2, sequence_length=2048, heads=64, kv_heads=64, head_dim=64)
HEADS = CASE.batch * CASE.heads


def moved(name, case=CASE, gpu=H100):
    return attention.load(name).moves(case, gpu)


class Operators(TorchDispatchMode):
    """Adds up the bytes that PyTorch's operators read and write, each operand as large as its result is."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        operands = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.dim()]
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket._qualified_op_name
        if func.is_view or name in ("aten::_unsafe_view", "aten::scalar_tensor"):
            return out
        broadcasts = name in ("aten::add", "aten::where")  # their operands are broadcast
        self.bytes += sum((out.numel() if broadcasts else x.numel()) * x.element_size() for x in operands)
        self.bytes += out.numel() * out.element_size()
        if name == "aten::_safe_softmax":  # it compares, reduces and selects inside: 4 + 1, 1, 4 + 4 bytes
            self.bytes += out.numel() * 14
        return out


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_plain_attention_moves_what_its_operators_read_and_write(dtype, causal):
    case = Case("cpu", dtype, 2, 40, 3, 3, 16, causal)
    q, k, v = (torch.randn(2, 40, 3, 16, dtype=getattr(torch, dtype), requires_grad=True) for _ in range(3))
    do = torch.randn(2, 40, 3, 16, dtype=getattr(torch, dtype))
    math = attention.load("math")
    with Operators() as forward:
        o = math.attend(q, k, v, causal)
    with Operators() as backward:
        torch.autograd.grad(o, (q, k, v), do)
    assert moved("math", case) == Moved(forward.bytes, backward.bytes)


def by_loops(n, d, e, forward, backward, causal):
    """FlashAttention-1's bytes for one head, load by load and store by store, as its kernels make them."""

    def tiles_of(rows, keys):
        for first_key in range(0, n, keys):
            for start in range(first_key // rows * rows if causal else 0, n, rows):
                rows_here = min(rows, n - start)
                end = min(n, start + rows) if causal else n
                yield rows_here, first_key > 0, first_key + keys >= end

    forward_bytes = 2 * e * n * d
    for rows, begun, is_last in tiles_of(*forward):
        forward_bytes += rows * (8 + 4 * d) * begun + rows * (e * d + 8 + (e if is_last else 4) * d)
    backward_bytes = 4 * e * n * d
    for rows, begun, is_last in tiles_of(*backward):
        backward_bytes += rows * (8 + 3 * e * d + 4 * d * begun + (e if is_last else 4) * d)
    return forward_bytes, backward_bytes


@pytest.mark.parametrize("tile", [None, (32, 64), (128, 32)])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("dtype", "e"), [("float16", 2), ("float32", 4)])
def test_flash1_moves_the_state_of_each_row_once_for_each_tile_of_keys(dtype, e, causal, tile):
    case = replace(CASE, dtype=dtype, causal=causal, tile=tile)
    default_tiles = flash1.for_gpu((9, 0), getattr(torch, dtype))
    forward, backward = (tile or default_tiles[direction, 64][:2] for direction in ("forward", "backward"))
    forward_bytes, backward_bytes = by_loops(2048, 64, e, forward, backward, causal)
    assert moved("flash1", case) == Moved(HEADS * forward_bytes, HEADS * backward_bytes)


def test_the_formula_of_flash1_is_the_papers_but_for_its_first_and_last_tile():
    n, d, keys = 65536, 64, 256
    case = replace(CASE, sequence_length=n, causal=False, tile=(128, keys))
    paper = 2 * 2 * n * d + n // keys * (2 * n * d + 8 * n * d + 16 * n)
    assert moved("flash1", case).forward == pytest.approx(HEADS * paper, rel=0.005)


def test_later_versions_read_keys_once_for_each_tile_of_queries():
    n, d = 2048, 64
    case = replace(CASE, causal=False)
    for name in ("flash", "flash2", "portable"):
        statistics = 8 if name == "portable" else 4
        assert moved(name, case).forward == HEADS * (4 * n * d + statistics * n + n // 128 * 4 * n * d), name
    # Under a mask the i-th of 16 tiles reads i + 1 of 16 parts.
    causal_bytes = HEADS * (4 * n * d + 4 * n + 4 * d * 128 * sum(range(1, 17)))
    assert moved("flash").forward == causal_bytes
    # Three warpgroups of 64 queries share a block without a mask: 11 blocks.
    assert moved("custom", case).forward == HEADS * (4 * n * d + 8 * n + 11 * 4 * n * d)


def test_backwards_are_counted_kernel_by_kernel():
    n, d, e = 2048, 64, 2
    case = replace(CASE, causal=False)
    # Before: O and dO, zeros, rowsum(dO O). Tiles: K, V, dK, dV once; Q, dO, two statistics, dQ. After: dQ.
    bytes_before, bytes_of_keys, bytes_after = n * (2 * e * d + 4 * d + 4), n * 4 * e * d, n * (4 * d + e * d)
    tiles_read = n // 128 * n * (2 * e * d + 8 + 4 * d)
    assert moved("flash", case).backward == HEADS * (bytes_before + bytes_of_keys + tiles_read + bytes_after)
    portable = tiles.for_gpu((9, 0), torch.bfloat16)
    queries, keys = portable["dq"][64].rows, portable["dkdv"][64].keys
    dq = n * (4 * e * d + 12) + n // queries * n * 2 * e * d
    dkdv = n * 4 * e * d + n // keys * n * (2 * e * d + 12)
    assert moved("portable", case).backward == HEADS * (dq + dkdv)


def test_whole_tiles_are_read():
    assert keys_read(100, (64, 32), causal=False) == 200
    assert keys_read(100, (64, 48), causal=True) == 96 + 100  # 64 queries see 64 keys, in two tiles of 48
    assert rows_read(100, (64, 32), causal=False) == 400
    assert rows_read(100, (64, 32), causal=True) == 100 + 100 + 36 + 36


def test_there_is_no_formula_where_nobody_knows_the_tiles():
    uncounted = {name for name in backends.names() if moved(name) == Moved()}
    assert {"auto", "cudnn", "efficient", "flash3", "flash4", "flex", "tiled"} <= uncounted
    assert not {"math", "flash", "flash1", "flash2", "custom", "portable"} & uncounted
    for case in (replace(CASE, kv_heads=8), replace(CASE, dropout=0.125)):
        assert {moved(name, case) for name in backends.names()} == {Moved()}
    assert moved("flash", gpu=Gpu((8, 9), 128)) == Moved()
    assert moved("flash", replace(CASE, head_dim=80)) == Moved()
    single_head = moved("flash", replace(CASE, batch=1, heads=1, kv_heads=1))  # its keys are split
    assert single_head.forward is None and single_head.backward is not None


@pytest.mark.parametrize("name", backends.names())
def test_numbers_of_8_bits_have_scores_of_a_byte_and_no_formula(name):
    case = replace(CASE, dtype="float8_e4m3fn")
    assert score_bytes(case) * 2 == score_bytes(CASE)
    assert moved(name, case) == Moved()


def test_the_scores_of_one_head_at_128000_tokens_take_32_77_gb():
    assert score_bytes(Case("cuda", "float16", 1, 128_000, 1, 1, 64)) == 32_768_000_000


COLUMNS = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size",'
    '"Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"'
)
VALUES = {
    "dram__bytes_read.sum": ("byte", "8,404,992"),
    "dram__bytes_write.sum": ("byte", "1,024"),
    "lts__t_sectors_op_read.sum": ("sector", "1,000,000"),
    "lts__t_sectors_op_write.sum": ("sector", "131072"),
    "lts__t_sectors_op_red.sum": ("sector", "10"),
    "lts__t_sectors_op_atom.sum": ("sector", "0"),
}
HEAD = '==PROF== Connected to process 4711 (/usr/bin/python3.12)\n==PROF== Profiling "flash_fwd" - 0: 0%....50%....100% - 1 pass\n'


def lines(kernel, values, name="void pytorch_flash::flash_fwd_kernel<Traits<64, 128, 128>, 0, 1>(Params)"):
    head = f'"{kernel}","4711","python3.12","127.0.0.1","{name}","1","7","(128, 1, 1)","(16, 4, 8)","0","9.0"'
    return "".join(
        f'{head},"Command line profiler metrics","{metric}","{unit}","{value}"\n'
        for metric, (unit, value) in values.items()
    )


def test_the_output_of_ncu_is_summed_over_kernels():
    assert traffic.read(f"{HEAD}{COLUMNS}\n{lines(0, VALUES)}{lines(1, VALUES)}") == Counted(
        kernels=2,
        dram_read_bytes=2 * 8_404_992,
        dram_write_bytes=2 * 1024,
        l2_read_bytes=2 * 32_000_000,
        l2_write_bytes=2 * 32 * (131_072 + 10),
    )


def test_units_are_read_and_not_assumed():
    larger = VALUES | {"dram__bytes_read.sum": ("Mbyte", "8.40")}
    assert traffic.read(f"{COLUMNS}\n{lines(0, larger)}").dram_read_bytes == 8_400_000


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("==WARNING== No kernels were profiled.\n", "ncu counted no kernel"),
        (f"{COLUMNS}\n", "ncu counted no kernel"),
        (
            f"{COLUMNS}\n{lines(0, {**VALUES, 'dram__bytes_read.sum': ('byte', 'n/a')})}",
            "ncu gave dram__bytes_read.sum as 'n/a' in the unit 'byte'",
        ),
        (
            f"{COLUMNS}\n{lines(0, {**VALUES, 'dram__bytes_read.sum': ('%', '3')})}",
            "ncu gave dram__bytes_read.sum as '3' in the unit '%'",
        ),
        (
            f"{COLUMNS}\n{lines(0, VALUES)}{lines(1, dict([*VALUES.items()][:5]))}",
            "ncu did not count lts__t_sectors_op_atom.sum of a kernel",
        ),
    ],
)
def test_what_is_no_count_is_refused(text, reason):
    with pytest.raises(traffic.Uncounted, match=f"^{re.escape(reason)}$"):
        traffic.read(text)


def plant(tmp_path, monkeypatch, script):
    """An ncu on PATH that is a shell script. `$log` is where it should write."""
    ncu = tmp_path / "ncu"
    ncu.write_text(
        f'#!/bin/sh\nfor x in "$@"; do [ "$last" = --log-file ] && log=$x; last=$x; done\n{script}\n'
    )
    ncu.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def counted(should_stop=lambda: False):
    return traffic.count("math", "forward", CASE, (), should_stop)


def test_a_count_runs_ncu_on_a_process_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "csv").write_text(f"{HEAD}{COLUMNS}\n{lines(0, VALUES)}")
    plant(tmp_path, monkeypatch, f'echo "$@" > {tmp_path}/given; cp {tmp_path}/csv "$log"')
    assert counted().kernels == 1
    command_line = (tmp_path / "given").read_text()
    assert (
        "--clock-control none --cache-control all" in command_line
        and ",".join(traffic.METRICS) in command_line
    )
    assert (
        '-m model.attention.timing.traffic math forward {"device": "cuda", "dtype": "bfloat16"'
        in command_line
    )


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            'echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission" > "$log"; exit 1',
            "may not read the GPU's counters (ERR_NVGPUCTRPERM)",
        ),
        (
            'echo "==ERROR== Failed to find metric regex:^dram__bytes_read" > "$log"; exit 1',
            "ncu: Failed to find metric regex:^dram__bytes_read",
        ),
        (
            'echo "==ERROR== The application returned an error code (1)." > "$log"; echo "OutOfMemoryError: no" >&2',
            "ncu: The application returned an error code (1). (OutOfMemoryError: no)",
        ),
        ('echo "ncu: not for this driver" >&2; exit 9', "ended with code 9: ncu: not for this driver"),
        ("true", "ncu counted no kernel"),
    ],
)
def test_a_count_that_failed_says_why(tmp_path, monkeypatch, script, reason):
    plant(tmp_path, monkeypatch, script)
    with pytest.raises(traffic.Uncounted, match=re.escape(reason)):
        counted()


def test_a_count_that_hangs_or_is_not_wanted_any_more_is_ended(tmp_path, monkeypatch):
    plant(tmp_path, monkeypatch, "sleep 60")
    with pytest.raises(Interrupted):
        counted(should_stop=lambda: True)
    monkeypatch.setattr(traffic, "LIMIT_SECONDS", 0.5)
    with pytest.raises(traffic.Uncounted, match=r"had not ended after 0\.5 s"):
        counted()


def test_without_ncu_or_an_nvidia_gpu_the_record_says_so(monkeypatch):
    monkeypatch.setattr(traffic.shutil, "which", lambda _: None)
    monkeypatch.setattr(traffic.Path, "glob", lambda *_: iter(()))
    with pytest.raises(traffic.Uncounted, match="neither on PATH nor in"):
        counted()
    measurement = traffic.measure(["math"], replace(CASE, device="cpu"))
    assert measurement.keys() == {("math", "forward"), ("math", "backward")}
    assert all(record.reason == "ncu counts on NVIDIA GPUs alone" for record in measurement.values())


def test_of_8_bits_the_forward_alone_is_counted():
    case = replace(CASE, device="cpu", dtype="float8_e4m3fn")
    assert traffic.measure(["custom"], case).keys() == {("custom", "forward")}


def test_the_newest_installed_ncu_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(traffic.shutil, "which", lambda _: None)
    paths = [tmp_path / release / "ncu" for release in ("2025.10.0", "2025.9.1", "2024.3.2")]
    monkeypatch.setattr(traffic.Path, "glob", lambda *_: iter(paths))
    assert traffic.profiler() == str(paths[0])


def test_a_record_has_either_counts_or_a_reason():
    for values in ({}, {"counted": Counted(**dict.fromkeys(Counted.model_fields, 1)), "reason": "both"}):
        with pytest.raises(ValueError, match="there is a reason why not"):
            Traffic(**values)
    assert KernelTime.model_fields["traffic"].default is None
