"""Run folders written by hand, as plain JSON, so that all that their pages should say is known beforehand.

Nothing of the project is imported: what stands in a file stands here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
GIB = 2**30
MODEL = {"dim": 512, "layers": 4, "heads": 8, "kv_heads": 2, "ffn_dim": 1024, "vocab_size": 4096}
LENGTH, BATCH = 1024, 4
H100 = {"device_name": "NVIDIA H100 80GB HBM3", "peak_flops": 989.4e12, "peak_source": "a datasheet"}
UNKNOWN_GPU = {"device_name": "NVIDIA Prototype", "peak_flops": None, "peak_source": None}
SOFTWARE = {"python": "3.11.7", "torch": "2.13.0", "driver": "570.86"}
Seconds = Callable[[int], float]  # of a step


def write(root: Path) -> None:
    """All studies."""
    ends(root)
    pair(root)
    ramp(root)
    margins(root)
    scaling(root)
    disturbed(root)
    grown(root)
    moved(root)
    waiting(root)
    prompts(root)
    profiled(root)
    calls(root)
    shapes(root)
    alone(root)
    swept(root)
    watched(root)
    sought(root)
    Study(root, "planned", "When does it start?").planned("auto", 0, 1)
    saved(root)
    places(root)
    tiled(root)
    eight(root)
    options(root)


def dump(path: Path, value: Any) -> None:
    """A record that is one file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def lines(path: Path, values: Sequence[Any]) -> None:
    """A record that is a file of lines."""
    path.write_text("".join(json.dumps(value) + "\n" for value in values))


def at(seconds: float) -> str:
    """A moment, by the seconds since the first launch."""
    return (START + timedelta(seconds=seconds)).isoformat()


def ends(root: Path) -> None:
    """Six repeats, ties, an outlier, a resumed run, a group out of memory and a run that failed."""
    study = Study(root, "ends", "Attention backends?", {"attention": "auto"})
    study.only = ["--only", "attention=auto,cudnn"]  # and of cudnn there is no run
    pairs = [(seed, repeat) for seed in range(3) for repeat in (1, 2)]
    for index, (seed, repeat) in enumerate(pairs):
        seconds = 0.0200 * (1 + 0.002 * index)
        for name, factor in (("auto", 1.0), ("flash", 0.92 + 0.002 * (index % 3)), ("flex", 1.0)):
            loss = 2.0 + 0.05 * seed + (0.3 if name == "flash" else 0.0) + 0.002 * repeat
            study.trained(name, seed, repeat, wavy(factor * seconds), loss)
        slowdown = 10 if index == 3 else 1  # the outlier
        if index == 5:
            study.broken("tiled", seed, repeat, "failed", "CUDA error: an illegal memory access")
        else:
            study.trained("tiled", seed, repeat, wavy(slowdown * 1.1 * seconds), 2.1 + 0.05 * seed)
    study.resumed("efficient", 0, wavy(0.03), 2.4)
    for repeat in (1, 2):
        study.broken(
            "math", 0, repeat, "oom_gpu", "out of GPU memory: requested 64.0 GiB", expected="oom_gpu"
        )


def pair(root: Path) -> None:
    """One run each, at the same time on one machine, whose GPU has no known peak."""
    study = Study(root, "pair", "One run each?", {"attention": "auto"}, {"loss": 0.005}, device=UNKNOWN_GPU)
    study.trained("auto", 0, 1, wavy(2.0, 0.04), 3.0, began=0)
    study.trained("flash", 0, 1, wavy(1.8, 0.04, 0.7), 3.0004, began=1, where={"gpu_uuid": "GPU-1"})


def ramp(root: Path) -> None:
    """One run each, one of which becomes slower all the time, so that its records are no sample of anything."""
    study = Study(root, "ramp", "Is it steady?", {"attention": "auto"})
    study.trained("auto", 0, 1, wavy(2.0, 0.04), 3.0)
    study.trained("flash", 0, 1, lambda step: 1.8 * (1 + step / 400), 3.0)


def margins(root: Path) -> None:
    """Three seeds a group and margins for rate and loss: equivalent, different, neither, and different alone.

    `math` is slower by a test of its own, which does not hold among all pairs.
    """
    stated_margins = {"loss": 0.01, "tokens_per_second": 0.02}
    study = Study(root, "margins", "Do they train alike?", {"attention": "auto"}, stated_margins)
    for seed in range(3):
        seconds = 0.02 * (1 + 0.03 * seed)
        study.trained("auto", seed, 1, wavy(seconds), 3.0 + 0.1 * seed)
        study.trained(
            "flash", seed, 1, wavy(seconds * (1.001 + 0.001 * seed)), 3.001 + 0.1 * seed + 1e-4 * seed**2
        )
        study.trained("flex", seed, 1, wavy(seconds * (0.9 + 0.001 * seed)), 3.2 + 0.1 * seed + 1e-3 * seed)
        study.trained("tiled", seed, 1, wavy(seconds * (0.98 + 0.02 * seed)), 3.01 + 0.1 * seed + 0.02 * seed)
        study.trained("math", seed, 1, wavy(seconds * (1.1 + 0.03 * seed)), 3.0 + 0.1 * seed)


def scaling(root: Path) -> None:
    """One GPU and two, at a constant batch a process, with two seeds each."""
    study = Study(root, "scaling", "How well do two GPUs do?")
    for seed in range(2):
        for gpus, seconds in ((1, 0.02), (2, 0.0215)):
            study.trained("auto", seed, 1, wavy(seconds * (1 + 0.004 * seed * gpus)), 3.0, gpus=gpus)


def disturbed(root: Path) -> None:
    """Blocks that become slower by 1 % each, a machine that others use, and two GPUs."""
    study = Study(root, "disturbed", "Is it the machine?", {"attention": "auto"}, order="interleaved")
    for block in range(1, 5):
        for name, seconds in (("auto", 0.02), ("flash", 0.019)):
            noise = 1 + 1e-4 * math.sin(5 * block + len(name))
            place = {"repeat": block, "block": block, "position": study.count + 1}
            where = {
                "host": f"nid00{1 + block % 2}",
                "gpu_uuid": f"GPU-{block % 2}",
                "device_users": int(block == 3),
            }
            study.trained(name, 0, block, wavy(seconds * 1.01**block * noise), 3.0, place=place, where=where)


def grown(root: Path) -> None:
    """A block a day, each slower, the third on another machine of the same name, where a backend has not run."""
    study = Study(root, "grown", "Which is fastest?", {"attention": "auto"}, order="interleaved")
    for block, (gpu, factor) in enumerate((("GPU-a", 1.0), ("GPU-a", 1.14), ("GPU-b", 1.3)), start=1):
        study.clock = 86400.0 * block
        for name, seconds in (("auto", 0.02), ("flash", 0.0201 + 1e-5 * block)):
            place = {"repeat": block, "block": block, "position": study.count + 1}
            if (name, block) == ("flash", 3):
                study.planned(name, 0, block, place=place)
            else:
                where = {"host": "vm", "gpu_uuid": gpu}
                study.trained(name, 0, block, wavy(seconds * factor), 3.0, place=place, where=where)


def moved(root: Path) -> None:
    """Two GPUs of which one waits for the other, and a run that went on with one GPU after it was stopped."""
    study = Study(root, "moved", "Does it hold?", {"attention": "auto"})
    rank_times = {"slowest_rank": 1, "slowest_rank_seconds": 0.0112, "other_ranks_seconds": 0.01}
    study.trained("auto", 0, 1, wavy(0.02), 3.0, gpus=2, each=rank_times)
    study.resumed("flash", 0, wavy(0.019), 3.0, gpus=2)


def waiting(root: Path) -> None:
    """A run that failed and one that nothing is known of."""
    study = Study(root, "waiting", "What comes of it?", {"attention": "auto"})
    study.broken("auto", 0, 1, "failed", "an error")
    study.planned("flash", 0, 1)
    study.broken("tiled", 0, 1, "failed", "an error")
    (study.folder / "waiting003" / "attempt-1" / "manifest.json").write_text("{ cut off")


def prompts(root: Path) -> None:
    """Prompts that are read, and tokens that are decoded."""
    study = Study(root, "prompts", "How fast are prompts read?", {"attention": "auto"})
    for name, seconds, decode in (("auto", 0.05, 0.004), ("flash", 0.04, 0.0041)):
        for repeat in range(1, 4):
            factor = 1 + 0.01 * repeat * (1 if name == "auto" else 1.3)
            study.inferred(name, repeat, wavy(seconds * factor), wavy(decode * factor))
    study.inferred("flex", 1, wavy(0.06), None)


def profiled(root: Path) -> None:
    """Profiles after the run of other steps than the timed ones, and of attention that takes less than it can."""
    study = Study(root, "profiled", "Where does the time go?", {"attention": "auto"})
    floor = [
        {"part": "products", "flop": 10**12, "seconds": 0.008},
        {"part": "attention", "flop": 10**11, "seconds": 0.004},
    ]
    floor = [{"phase": "step", **part} for part in floor]
    for name, seconds in (("auto", (0.011, 0.005, 0.0041)), ("flash", (0.016, 0.002, 0.006))):
        run = study.trained(name, 0, 1, wavy(0.02), 3.0, where={"floor": floor})
        parts = [
            {"phase": "step", "part": part, "seconds": duration}
            for part, duration in zip(("products", "attention", "idle"), seconds, strict=True)
        ]
        profile = {"run_id": run.name, "attempt": 1, "steps": 2, "step_seconds": sum(seconds), "parts": parts}
        dump(run / "attempt-1" / "profile.json", profile)


def calls(root: Path) -> None:
    """Attention alone at three shapes: a backend out of memory, one that fails, and a run without times."""
    study = Study(root, "calls", "Which backend is the fastest?")
    study.called("B1 T1024 H16 D128", {"auto": 1.0, "flash": 0.6, "math": 4.0}, counted=("flash", "math"))
    study.called("B1 T4096 H16 D128", {"auto": 5.0, "flash": 9.0, "math": "oom_gpu"}, gpu="GPU-1")
    study.called("B1 T4096 H16 D128", {"tiled": 6.0, "flex": "failed"}, gpu="GPU-1")
    study.called("B1 T8192 H16 D128", {})


def shapes(root: Path) -> None:
    """Attention alone at two shapes, each in one process."""
    study = Study(root, "shapes", "Is one backend ahead?")
    study.called("B1 T1024 H16 D128", {"auto": 1.0, "flash": 0.6, "math": 4.0})
    packages = SOFTWARE | {"flash-attn": "2.8.3"}
    study.called("B1 T4096 H16 D128", {"auto": 9.0, "flash": 5.0, "math": 30.0}, software=packages)


def alone(root: Path) -> None:
    """A group whose baseline failed, and whose backend computes attention wrongly by its certificate."""
    study, key = Study(root, "alone", "Is it any good?", {"attention": "auto"}), "c" * 64
    study.broken("auto", 0, 1, "failed", "an error")
    study.trained("flash", 0, 1, wavy(0.02), 3.0, where={"certificate": key})
    case = "B4 T1024 H8 K2 D64 bfloat16 causal"
    checks = [
        {"name": "right", "what": tensor, "case": case, "variant": "plain", "measured": deviation, "tolerance": 0.8,
         "relative_error": 0.01 * deviation, "passed": deviation < 0.8, "reason": None if deviation < 0.8 else f"{tensor} is off"}
        for tensor, deviation in (("o", 12.0), ("dq", 0.4), ("dk", 1.3), ("dv", 0.4))
    ]  # fmt: skip
    certificate = {
        "backend": "flash", "verdict": "wrong", "reasons": ["right: o is off"], "device": "cuda",
        "device_name": H100["device_name"], "software": SOFTWARE, "code": "d" * 64, "case": None, "key": key,
        "kernels": {}, "checks": checks, "seconds": 1.0, "created_at": at(0),
    }  # fmt: skip
    dump(root / ".certificates" / f"{key}.json", certificate)


def swept(root: Path) -> None:
    """Three batch sizes by two learning rates, with one cell out of memory."""
    study = Study(root, "swept", "How do they go together?")
    for batch in (4, 8, 16):
        for rate in (0.001, 0.003):
            study.cell = {"train.batch_size": batch, "train.learning_rate": rate}
            if batch == 16 and rate == 0.003:
                study.broken("auto", 0, 1, "oom_gpu", "out of GPU memory: requested 64.0 GiB")
            else:
                seconds = 0.02 * (batch / 4) ** 0.9 * (1 + rate)
                study.trained("auto", 0, 1, wavy(seconds), 3.0 + rate * 100 - batch / 100)


def watched(root: Path) -> None:
    """A run whose GPU was watched, whose attention was audited, and which waited for its data."""
    study, clocks = Study(root, "watched", "What did its GPU do?"), {"sm_mhz": 1980.0, "memory_mhz": 2619.0}
    clocks_before = {
        **clocks,
        "power_limit_watts": 700.0,
        "power_capped_seconds": 10.0,
        "slowed_seconds": 0.5,
    }
    run = study.trained("auto", 0, 1, wavy(0.02), 3.0, where={"clocks": clocks_before}) / "attempt-1"
    records = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    for record in records:
        seconds, step = record["step_seconds"], record["step"]
        record |= {
            "energy_joules": 600 * seconds,
            "data_wait_seconds": 0.02 * seconds,
            "throttle_reasons": "power cap",
        }
        record |= {"sm_mhz": 1700.0 + step % 56}
        if step % 30 == 10 and step > 10:
            power = sum(earlier_record["step_seconds"] for earlier_record in records[step - 30 : step])
            record |= {"power_joules": 650 * power, "power_seconds": power, "power_steps": 30}
    lines(run / "steps.jsonl", records)
    result = json.loads((run / "result.json").read_text())
    dump(run / "result.json", {**result, "clocks": {**clocks_before, "power_capped_seconds": 12.25}})
    (run / "stdout.log").write_text("one\ntwo\n")
    tensors = {
        name: {"measured": measured, "tolerance": 0.8, "relative_error": measured / 100, "place": "head 0"}
        for name, measured in (("o", 0.2), ("dq", 0.6))
    }
    audit = {"time": at(30), "sample": 1, "first_head": 4, "heads": 4, "rows": 1024, "tensors": tensors}
    audit |= {"passed": True, "reason": None, "seconds": 0.25}
    lines(run / "audits.jsonl", [{**audit, "step": step, "layer": step % 4} for step in (12, 90)])


def sought(root: Path) -> None:
    """The longest sequence: a frontier with an edge, one above which a probe hung, one that stops at the most."""
    study = Study(root, "sought", "How long a sequence fits?")
    study.probed(
        "flash", 1.0, 8192, {8192: "fits", 9216: "oom_gpu", 8704: "fits", 8960: "edge", 9472: "oom_gpu"}
    )
    study.probed("flash", 0.25, 1536, {1536: "fits", 1792: "timeout"})
    study.probed(
        "math", 1.0, 2048, {2048: "oom_gpu", 1792: "fits", 1920: "oom_gpu", 2304: "fits", 2560: "oom_gpu"}
    )
    study.probed("math", 0.25, 512, {512: "oom_gpu", 256: "oom_gpu"})
    study.probed("auto", 1.0, 16384, {16384: "fits"})
    study.probed("auto", 0.25, 2048, {2048: "failed"})


def saved(root: Path) -> None:
    """A grid of lengths by dims under plain attention and another, with what others report of some of its groups."""
    study = Study(root, "saved", "What is saved, and where?", {"attention": "math"})
    study.steps = 40
    cells = ((256, 256), (512, 256), (1024, 256), (256, 512), (256, 768))
    for seed, (length, dim), name in product((0, 1, 2), cells, ("math", "flash")):
        if seed and (dim != 256 or length == 1024):
            continue
        study.cell = {"attention": name, "train.sequence_length": length, "model.dim": dim}
        study.plan = {
            "reported": theirs(name, length, dim), "reported_elsewhere": [7, 9], "also_expected": ["oom_gpu"],
        }  # fmt: skip
        if (length, dim) == (256, 512):  # this launch has fewer steps than the study
            study.plan = {**study.plan, "overridden": {"train.steps": {"own": 2000, "by": "scale laptop"}}}
        elif (length, dim) == (256, 768):
            study.plan = {**study.plan, "overridden": {"train.batch_size": {"own": 8, "by": "scale laptop"}}}
        if (name, length, dim) == ("math", 1024, 256):
            study.broken(name, 0, 1, "oom_gpu", "out of GPU memory: requested 64.0 GiB")
            continue
        seconds = 1e-5 * length * dim**0.5 * (1 + length / (1000 if name == "math" else 4000 - dim))
        seed_factor = 1 + 0.002 * seed * (3 if name == "math" else 4)
        factor = 2 if name == "math" else 1.5 + dim / 2048 - length / 8192
        peak = round(length * dim * (2**14 + 2**10 * seed) * factor)
        step_fields = {"memory_bytes": peak // 2}
        final = 3 + seed / 10 + (length / 1e5 + seed / 1e3 + 0.01 if name == "flash" else 0.0)
        step_seconds = wavy(seconds * seed_factor, 0.02, seed + len(name))
        study.trained(name, seed, 1, step_seconds, final, each=step_fields, peak=peak)


def options(root: Path) -> None:
    """Two options, alone and together: each has a partner that lacks it alone; one group lacks a seed."""
    base = {"train.compile": False, "train.loss": "cross_entropy"}
    study = Study(root, "options", "What does each option gain?", base, {"tokens_per_second": 0.02})
    for seed, compiled, joined in product(range(3), (False, True), (False, True)):
        if seed == 2 and compiled and not joined:
            continue
        study.cell = {"train.compile": compiled, "train.loss": f"{'linear_' * joined}cross_entropy"}
        study.plan = {"label": ("eager", "joined", "compiled", "both")[2 * compiled + joined]}
        seconds = 0.02 * (1 + 0.03 * seed) * (0.9 if compiled else 1.0)
        if joined:
            seconds *= 0.95 + 0.001 * seed if compiled else 0.96 + 0.03 * seed
        study.trained("auto", seed, 1, wavy(seconds), 3.0 + 0.1 * seed)


def theirs(name: str, length: int, dim: int) -> list[dict[str, Any]]:
    """What others report of a group of `saved`."""
    origin: dict[str, Any] = {"source": "A report, table 1", "read_from": "table"}
    if name == "flash" and dim == 256:
        numbers = {"time_saved_percentage": "68.92", "memory_saved_percentage": "149.5"}
        note = "no such card exists: an L4 has 24 GB"
        return [{**origin, "hardware": "L4 (32GB)", "numbers": numbers, "note": note}]
    if name == "flash" and (length, dim) == (256, 512):
        numbers = {
            "tokens_per_second": "81270.7", "mfu": "42.36", "tflops": "418.91", "final_loss": "3.25",
            "training_seconds": "12.5", "peak_memory_bytes": "6.53e9", "training_tokens_percentage": "97.5",
        }  # fmt: skip
        return [{**origin, "hardware": H100["device_name"], "gpus": 2, "numbers": numbers}]
    if name == "flash" and (length, dim) == (256, 768):
        return [{**origin, "hardware": "A100", "numbers": {"tokens_per_second": "5000"}, "read_from": "plot"}]
    return []


def places(root: Path) -> None:
    """Three batches by three lengths of attention alone, at one batch also without a mask, with the host's time.

    At one shape others are the fastest in another precision and without a mask.
    """
    study = Study(root, "places", "Where does the host count?")
    for batch, length, causal in (
        *((batch, length, True) for batch in (1, 2, 4) for length in (1024, 2048, 4096)),
        *((1, length, False) for length in (1024, 2048, 4096)),
    ):
        work = batch * (length / 1024) ** 2 / (2 if causal else 1)
        times: dict[str, float | str] = {
            "math": 0.9 * work,
            "flash": 0.2 * work,
            "custom": 0.05 + 0.11 * work,
        }
        if (batch, length) == (4, 4096):
            times["math"] = "oom_gpu"
        study.plan = {"reported": theirs_of_calls() if (batch, length) == (2, 2048) else []}
        study.called(
            f"B{batch} T{length} H16 D128", times, launch=0.08, causal=causal, dtype="bfloat16",
            counted=("flash", "custom") if length == 2048 and causal else (),
        )  # fmt: skip
    study.plan = {}
    for times, settings in (
        ({"math": 5.0, "flash": 12.0, "custom": 20.0}, {"causal": True, "dtype": "float32"}),
        ({"math": 40.0, "flash": 3.0, "custom": 5.0}, {"causal": False, "dtype": "bfloat16"}),
    ):
        study.called("B2 T4096 H16 D128", times, launch=0.08, **settings)


def theirs_of_calls() -> list[dict[str, Any]]:
    """What others report of backends at a shape of `places`."""
    origin: dict[str, Any] = {"source": "A thesis, section 6", "read_from": "text"}
    math = {"forward_milliseconds": "0.78", "backward_milliseconds": "2.5", "both_milliseconds": "4.0"}
    flash = {"forward_milliseconds": "0.51", "forward_tflops": "1250", "call_memory_bytes": "32.77e6"}
    return [
        {**origin, "hardware": "Tesla T4", "backend": "math", "numbers": math},
        {**origin, "hardware": H100["device_name"], "backend": "flash", "numbers": flash},
    ]


def tiled(root: Path) -> None:
    """Tiles of six sizes, one of which a backend refuses, each with dropout and without, which one has not."""
    study = Study(root, "tiled", "Which tile is the best?")
    for index, tile in enumerate(("64x32", "64x64", "64x128", "32x64", "128x64", "128x256")):
        for dropout in (0.0, 0.125):
            factor = (1 + 0.1 * index) * (1 + 2 * dropout)
            times: dict[str, float | str] = {"flash1": 2.0 * factor, "portable": 1.5 * factor}
            if tile == "128x256":
                times["flash1"] = "unsupported"
            if dropout:
                times["flash1"] = "unsupported"
            study.called("B1 T2048 H16 D128", times, tile=tile, dropout=dropout)


def eight(root: Path) -> None:
    """Two shapes in 8 bits and in bfloat16, and the certificates of 8 bits."""
    study = Study(root, "eight", "What do 8 bits gain?")
    keys = {"custom": "8" * 64, "flash3": "9" * 64}
    for index, (backend, key) in enumerate(keys.items()):
        deviations = (0.32 + 0.1 * index, 0.0199 + 0.001 * index)
        measured = [
            ("right", "o", "plain", *deviations), ("right", "o", "outliers", 1.5 * deviations[0], 3 * deviations[1]),
            ("quantisation", "o", "plain", 0.047 + 0.01 * index, None),
            ("quantisation", "o of bfloat16", "plain", 0.0035, None),
            ("quantisation", "o", "outliers, heads first", 0.049, None),
            ("quantisation", "o of bfloat16", "outliers, heads first", 0.0043 + 0.001 * index, None),
        ]  # fmt: skip
        checks = [
            {"name": name, "what": tensor, "case": "B4 T2048 H8 K8 D128 float8_e4m3fn causal", "variant": variant,
             "measured": value, "tolerance": 0.8 if name == "right" else None, "relative_error": error,
             "passed": True, "reason": None}
            for name, tensor, variant, value, error in measured
        ]  # fmt: skip
        certificate = {
            "backend": backend, "verdict": "right", "reasons": [], "device": "cuda",
            "device_name": H100["device_name"], "software": SOFTWARE, "code": "d" * 64, "case": None, "key": key,
            "kernels": {}, "checks": checks, "seconds": 1.0, "created_at": at(0),
        }  # fmt: skip
        dump(root / ".certificates" / f"{key}.json", certificate)
    for length in (4096, 8192):
        work = (length / 4096) ** 2
        for dtype, factor in (("bfloat16", 1.0), ("float8_e4m3fn", 0.6)):
            times: dict[str, float | str] = {
                "custom": 0.5 * work * factor,
                "flash3": 0.48 * work * factor**0.8,
            }
            certificate_keys = keys if factor < 1 else {}
            study.called(f"B1 T{length} H16 D128", times, dtype=dtype, certificates=certificate_keys)


def logs(folder: Path) -> dict[str, Any]:
    """Logs of another program with a column of learning rates, one of them of another loss; gives their mapping."""
    folder.mkdir(parents=True)
    for index, name in enumerate(("auto", "flash", "flex", "tiled", "odd")):
        rows = ["step,loss,lr,seconds,tokens"]
        for step in range(1, 101):
            loss = 3.0 + 4 / step + 0.001 * math.sin(step + index) + (0.2 if name == "odd" else 0.0)
            seconds = wavy(0.02 + 0.001 * index)(step)
            rows.append(f"{step},{loss:.5f},{1e-3 * min(1.0, step / 20):.6f},{seconds:.6f},{LENGTH}")
        (folder / f"{name}.csv").write_text("\n".join(rows) + "\n")
    columns = {
        "step": "step",
        "loss": "loss",
        "learning_rate": "lr",
        "step_seconds": "seconds",
        "tokens": "tokens",
    }
    train = {"steps": 100, "sequence_length": LENGTH, "batch_size": 1, "dtype": "bfloat16"}
    constants = {"gpu": H100["device_name"], "gpus": 1}
    if folder.name == "endless":
        for file in list(folder.glob("*.csv"))[1:]:
            file.unlink()
        del train["steps"]
    return {
        "columns": columns, "file_name": "(?P<attention>.+)", "constants": constants,
        "config": {"model": MODEL, "train": train},
    }  # fmt: skip


def wavy(seconds: float, width: float = 0.01, phase: float = 0.0) -> Seconds:
    """Step times around a value, the first one much longer."""
    return lambda step: (
        seconds
        * (
            50
            if step == 1
            else 1 + width * math.sin(1.7 * step + phase) + width / 3 * math.cos(0.41 * step * step)
        )
    )


class Study:
    """A study whose runs are being written, one after the other unless one says when it began."""

    steps = 130
    cell: dict[str, Any] | None = None  # the factors of a sweep, where it is one
    plan: Mapping[str, Any] = {}  # what else `run.json` has of a run
    only: Sequence[str] = ()  # what its launch was given

    def __init__(
        self,
        root: Path,
        name: str,
        question: str,
        baseline: Mapping[str, Any] | None = None,
        margins: dict[str, float] | None = None,
        device: dict[str, Any] = H100,
        order: str = "as written",
    ) -> None:
        self.folder, self.name, self.question, self.device = root / name, name, question, device
        self.design = {
            "order": order, "order_seed": None, "baseline": baseline, "margins": margins or {}, "until": None,
        }  # fmt: skip
        self.clock, self.count, self.flop = 0.0, 0, FLOP

    def planned(
        self, attention: str, seed: int, repeat: int, expected: str = "completed", gpus: int = 1,
        place: dict[str, int] | None = None, **changes: Any,
    ) -> Path:  # fmt: skip
        """`run.json`; `changes` are of its configuration."""
        self.count += 1
        train = {
            "steps": self.steps, "sequence_length": LENGTH, "batch_size": BATCH * gpus, "learning_rate": 1e-3,
            "warmup_steps": 10, "log_every": 1, "dtype": "bfloat16",
        }  # fmt: skip
        config: dict[str, Any] = {
            "attention": attention or None,
            "seed": seed,
            "device": "cuda",
            "model": MODEL,
        }
        config |= {"data": {"path": "text.parquet"}, "train": train}
        factors: dict[str, Any] = {"attention": attention, "seed": seed}
        if gpus > 1:
            config["parallel"] = {"replicate": gpus}
        if self.name == "scaling":
            factors = {"parallel.replicate": gpus, "seed": seed}
        if self.cell:
            factors = {**self.cell, "seed": seed}
        config = {key: value for key, value in (config | changes).items() if value is not None}
        for name, value in (self.cell or {}).items():
            section, _, key = name.rpartition(".")
            if section:
                config[section] = {**config[section], key: value}
        group = f"{attention}-{gpus}-{[*changes.get('call', {}).values()]}{self.cell or ''}"
        if "call" in config:
            varied = {f"call.{name}": value for name, value in config["call"].items() if name != "steps"}
            factors = {**varied, "seed": seed}
        settings = config.get("train") or config.get("inference") or {}
        length = settings.get("sequence_length")
        self.flop = flop(config["model"], length) if length and "model" in config else FLOP
        reads = config.get("data") is not None
        run_id = f"{self.name}{self.count:03d}"
        reason = "the scores alone need more memory than the GPU has" if expected != "completed" else None
        dump(
            self.folder / run_id / "run.json",
            {
                "run_id": run_id, "group": group, "repeat": repeat, "position": None, "block": None,
                "design": self.design, "study": self.name, "study_file": f"{self.name}.yaml",
                "title": f"Study {self.name}", "description": self.question, "factors": factors, "config": config,
                "expected_outcome": expected, "because": reason, "why": [f"{self.name}.yaml:{self.count}:1"],
                "scale": "full", "profile": "local", "memory_bytes": None, "time_limit_seconds": None,
                "peak_flops_override": None, "data_file": "/data/text.parquet" if reads else None,
                "tokenizer": "bytes" if reads else None, "data_fingerprint": "f" * 32 if reads else None,
                "provenance": {
                    "git_sha": "a1b2c3d4e5f60718293a4b5c6d7e8f9012345678", "git_dirty": False,
                    "command": ["runner", "launch", *self.only], "version": "0.1.0",
                },
                "created_at": at(self.count),
                **(place or {}),
                **self.plan,
            },
        )  # fmt: skip
        return self.folder / run_id

    def trained(
        self, attention: str, seed: int, repeat: int, seconds: Seconds, final: float, gpus: int = 1,
        began: float | None = None, place: dict[str, int] | None = None, where: dict[str, Any] | None = None,
        each: dict[str, Any] | None = None, peak: int | None = None,
    ) -> Path:  # fmt: skip
        """A run that completed in one attempt; `where` is of its manifest, `each` of each of its records."""
        run = self.planned(attention, seed, repeat, gpus=gpus, place=place)
        began = self.clock if began is None else began
        self._start(run, 1, began, gpus=gpus, **(where or {}))
        duration = self._steps(run, 1, began + 5, range(1, self.steps + 1), seconds, final, gpus, each)
        self._end(
            run,
            1,
            began,
            5 + duration + 2,
            "completed",
            self.steps,
            final,
            peak=peak or 10 * GIB + seed * GIB // 4,
        )
        self.clock = began + duration + 60
        return run

    def resumed(self, attention: str, seed: int, seconds: Seconds, final: float, gpus: int = 1) -> None:
        """A run that was preempted at step 70, and an hour later went on from step 60, on one GPU."""
        run, start = self.planned(attention, seed, 1, gpus=gpus), self.clock
        self._start(run, 1, start, gpus=gpus)
        duration = self._steps(run, 1, start + 5, range(1, 71), seconds, final, gpus)
        self._end(run, 1, start, 5 + duration + 9, "preempted", 70, None, peak=11 * GIB)
        restart = start + duration + 3600
        changes: dict[str, Any] = (
            {"parallel": {"replicate": 1, "shard": 1, "context": 1, "tensor": 1}} if gpus > 1 else {}
        )
        self._start(run, 2, restart, resumed_attempt=1, resumed_step=60, **changes)
        duration = self._steps(run, 2, restart + 7, range(61, self.steps + 1), lambda step: seconds(step) * (
            30 if step == 61 else 1), final, gpus)  # fmt: skip
        self._end(run, 2, restart, 7 + duration + 2, "completed", self.steps, final, peak=12 * GIB)
        self.clock = restart + duration + 60

    def broken(
        self, attention: str, seed: int, repeat: int, outcome: str, reason: str, expected: str = "completed"
    ) -> None:
        """A run that ended before its first step."""
        run = self.planned(attention, seed, repeat, expected)
        self._start(run, 1, self.clock)
        self._end(run, 1, self.clock, 4, outcome, 0, None, reason, peak=70 * GIB)
        self.clock += 60

    def inferred(self, attention: str, repeat: int, seconds: Seconds, decode: Seconds | None) -> None:
        """Forty prefills of which five are the warm-up, and thirty decoded positions."""
        settings = {"steps": 40, "warmup_steps": 5, "batch_size": 2, "prompt_length": LENGTH}
        settings["new_tokens"] = 30 if decode else 0
        run = self.planned(attention, 0, repeat, task="inference", inference=settings, train=None)
        floors = [("step", "products", 0.02), ("step", "attention", 0.005), ("decode", "products", 0.0012)]
        floor = [
            {"phase": phase, "part": part, "flop": 10**12, "seconds": duration}
            for phase, part, duration in floors
        ]
        self._start(run, 1, self.clock, flop_per_token=PREFILL_FLOP, floor=floor)
        records = [
            {
                "step": step, "steps": 1, "time": at(self.clock + step), "step_seconds": seconds(step),
                "tokens": 2 * LENGTH, "memory_bytes": 6 * GIB,
            }
            for step in range(1, 41)
        ]  # fmt: skip
        lines(run / "attempt-1" / "steps.jsonl", records)
        if decode:
            rows = [
                {"position": LENGTH + index, "time": at(self.clock + 41), "seconds": decode(index + 2), "token_ids": [7, index]}
                for index in range(30)
            ]  # fmt: skip
            lines(run / "attempt-1" / "decode.jsonl", rows)
        self._end(run, 1, self.clock, 50, "completed", 40, None, peak=6 * GIB)
        self.clock += 60

    def called(
        self, shape: str, times: dict[str, float | str], gpu: str = "GPU-0", counted: tuple[str, ...] = (),
        launch: float = 0.0, certificates: Mapping[str, str] = MappingProxyType({}), software: dict[str, str] = SOFTWARE,
        **asked: Any,
    ) -> None:  # fmt: skip
        """Backends called in turn for eight rounds; by name, the milliseconds of a forward, or how it ended.

        Args:
            counted: backends of which the bytes of calls were counted; there was no formula for the last one's.
            launch: milliseconds that the host takes for a call; 0: nobody looked.
            certificates: keys of the backends' certificates.
            asked: other settings of the call.
        """
        call = {"shape": shape, "steps": 8, **asked}
        run = self.planned("", 0, 1, task="attention", call=call, train=None, model=None, data=None)
        self._start(run, 1, self.clock, flop_per_token=None, gpu_uuid=gpu, software=software)
        batch, length, heads, dim = (int(part[1:]) for part in shape.split())
        rows = []
        dtype, tile = asked.get("dtype", "bfloat16"), asked.get("tile")
        factors = {"forward": 1.0, "backward": 2.5}
        if dtype == "float8_e4m3fn":
            del factors["backward"]
        for mode in ("eager", "graph"):
            for name, milliseconds in times.items():
                for direction, factor in factors.items():
                    row: dict[str, Any] = {"attention": name, "direction": direction, "mode": mode}
                    if isinstance(milliseconds, str):
                        row |= {"outcome": milliseconds, "reason": f"{name} ended so"}
                    else:
                        index = list(times).index(name)
                        call_seconds = [
                            milliseconds / 1e3 * factor * (1 + 0.01 * math.sin(3 * round_index + index))
                            for round_index in range(8)
                        ]
                        row |= {
                            "outcome": "completed",
                            "seconds": call_seconds,
                            "memory_bytes": (index + 1) * GIB // 4,
                        }
                        row |= {"sm_mhz": [1755.0, 1740.0 - index], "throttle_reasons": ["power cap"]}
                        row["certificate"] = certificates.get(name)
                        if launch:  # which a graph hardly needs
                            host_milliseconds = launch if mode == "eager" else launch / 50
                            row["seconds"] = [duration + host_milliseconds / 4e3 for duration in call_seconds]
                            row["host_seconds"] = [
                                host_milliseconds / 1e3 * (1 + 0.02 * math.cos(round_index + index))
                                for round_index in range(8)
                            ]
                            row["kernel_seconds"] = (
                                0.97 * milliseconds / 1e3 * factor if mode == "eager" else None
                            )
                            elements = batch * length * heads * dim
                            scores = 2 * batch * heads * length**2 if name == "math" else 0
                            row["memory_bytes"] = round(
                                elements * (2 if direction == "forward" else 8) * factor + scores
                            )
                        if name in counted and mode == "eager":
                            bytes_ = {
                                f"{memory}_{access}_bytes": round(1.23e9 * number * factor) + index
                                for number, (memory, access) in enumerate(
                                    [("l2", "read"), ("l2", "write"), ("dram", "read"), ("dram", "write")], 1
                                )
                            }
                            formula = None if name == counted[-1] else round(4.56e9 * factor)
                            row["traffic"] = {"formula_bytes": formula, "counted": {"kernels": 3, **bytes_}}
                        elif counted and mode == "eager":
                            row["traffic"] = {"reason": "ncu counted no kernel"}
                    rows.append(row)
        case = {
            "device": "cuda", "dtype": dtype, "batch": batch, "sequence_length": length, "heads": heads,
            "kv_heads": heads, "head_dim": dim, "causal": asked.get("causal", True),
            "dropout": asked.get("dropout", 0.0), "tile": [*map(int, tile.split("x"))] if tile else None,
        }  # fmt: skip
        kernels = (
            {
                "run_id": run.name, "attempt": 1, "case": case, "rounds": 8, "cache_bytes": 2**28,
                "product_flop": 2 * 8192**3, "product_seconds": [2 * 8192**3 / 700e12] * 8, "times": rows,
                "measured_at": at(self.clock),
            }
        )  # fmt: skip
        if times:
            dump(run / "attempt-1" / "kernels.json", kernels)
        self._end(run, 1, self.clock, 30, "completed", 8, None)
        self.clock += 60

    def probed(self, attention: str, fraction: float, foreseen: int, ends: dict[int, str]) -> None:
        """A search for the longest sequence up to 16,384; by length, how its probe ended. A token takes a MiB."""
        settings = {
            "find": "sequence_length",
            "sequence_length": 16384,
            "multiple": 128,
            "memory_fraction": fraction,
        }
        self.cell = {"attention": attention, "frontier.memory_fraction": fraction}
        run = self.planned(attention, 0, 1, task="frontier", frontier=settings, train=None, data=None)
        self._start(run, 1, self.clock, flop_per_token=None)
        probes = []
        for index, (length, end) in enumerate(ends.items()):
            peak = (length + 10 * index) * 2**20
            probe = {
                "value": length,
                "purpose": "above" if index == 4 else "search",
                "outcome": end,
                "seconds": 20 + index,
            }
            probe |= {"reason": None if end == "fits" else f"{length} tokens ended so"}
            probe |= {"forecast_bytes": length * 2**20 * 19 // 20}
            if end in ("fits", "edge", "oom_gpu"):
                probe |= {"peak_bytes": peak, "reserved_bytes": peak + GIB, "retries": 2 * (end == "edge")}
                probe |= {"outside_bytes": GIB // 2}
            probes.append(probe)
        record = {
            "run_id": run.name, "attempt": 1, "find": "sequence_length", "multiple": 128, "most": 16384,
            "card_bytes": int(fraction * 80 * GIB), "memory_fraction": fraction, "foreseen": foreseen,
            "probes": probes, "measured_at": at(self.clock + 100),
        }  # fmt: skip
        dump(run / "attempt-1" / "frontier.json", record)
        peaks = [probe["peak_bytes"] for probe in probes if probe["outcome"] == "fits"]
        failed = ends[max(ends)] == "failed"
        outcome = ("failed", len(probes), None, "no probe showed whether its value fits") if failed else (
            "completed", len(probes), None, None)  # fmt: skip
        self._end(run, 1, self.clock, 90, *outcome, peak=max(peaks, default=GIB))
        self.clock += 200

    def _start(self, run: Path, attempt: int, began: float, gpus: int = 1, **changes: Any) -> None:
        event = {
            "time": at(began - 1),
            "event": "claimed",
            "attempt": attempt,
            "executor": "local",
            "host": "login",
            "pid": 7,
        }
        with (run / "ledger.jsonl").open("a") as ledger:
            ledger.write(json.dumps(event) + "\n")
        ranks = [{"node": "nid001", "gpu_uuid": f"GPU-{rank}"} for rank in range(gpus)] if gpus > 1 else None
        dump(
            run / f"attempt-{attempt}" / "manifest.json",
            {
                "run_id": run.name, "attempt": attempt, "started_at": at(began), "host": "nid001", "pid": 1,
                "pid_started": 1.0, "slurm": {}, "software": SOFTWARE, "gpu_uuid": "GPU-0", "gpus": gpus,
                "ranks": ranks, "cores": 64, "load_before": 0.5, "flop_per_token": self.flop,
                **self.device, **changes,
            },
        )  # fmt: skip

    def _steps(
        self, run: Path, attempt: int, began: float, steps: range, seconds: Seconds, final: float, gpus: int = 1,
        each: dict[str, Any] | None = None,
    ) -> float:  # fmt: skip
        """The records of these steps; gives how long they took."""
        elapsed, records = 0.0, []
        for step in steps:
            elapsed += seconds(step)
            cell = self.cell or {}
            tokens = cell.get("train.sequence_length", LENGTH) * cell.get("train.batch_size", BATCH * gpus)
            loss = (
                final + 5 * (1 / step - 1 / self.steps) + (0.003 * math.sin(step) if step < self.steps else 0)
            )
            record = {
                "step": step, "steps": 1, "time": at(began + elapsed), "loss": loss, "learning_rate": 1e-3,
                "grad_norm": 1.0, "step_seconds": seconds(step), "tokens": tokens, "training_tokens": tokens,
                "memory_bytes": 9 * GIB, **(each or {}),
            }  # fmt: skip
            records.append(record)
        lines(run / f"attempt-{attempt}" / "steps.jsonl", records)
        return elapsed

    def _end(
        self, run: Path, attempt: int, began: float, wall: float, outcome: str, steps: int, final: float | None,
        reason: str | None = None, peak: int | None = None,
    ) -> None:  # fmt: skip
        dump(
            run / f"attempt-{attempt}" / "result.json",
            {
                "run_id": run.name, "attempt": attempt, "outcome": outcome, "reason": reason, "steps": steps,
                "final_loss": final, "peak_memory_bytes": peak, "started_at": at(began),
                "ended_at": at(began + wall), "wall_seconds": wall, "load_after": 1.0,
            },
        )  # fmt: skip


def _without_embedding(model: dict[str, int]) -> int:
    """Parameters without the input embedding, by counting the llama's matrices."""
    dim, kv = model["dim"], model["dim"] // model["heads"] * model["kv_heads"]
    block = dim * dim + 2 * dim * kv + dim * dim + 3 * dim * model["ffn_dim"] + 2 * dim
    return model["layers"] * block + dim + model["vocab_size"] * dim


def flop(model: dict[str, int], length: int) -> int:
    """Of a token of training: 6 N + 12 L H Q T."""
    return 6 * _without_embedding(model) + 12 * model["layers"] * model["dim"] * length


N = _without_embedding(MODEL)
HEAD = MODEL["vocab_size"] * MODEL["dim"]  # which a prompt needs once
FLOP = flop(MODEL, LENGTH)
PREFILL_FLOP = 2 * (N - HEAD) + 2 * HEAD // LENGTH + 4 * MODEL["layers"] * MODEL["dim"] * LENGTH
