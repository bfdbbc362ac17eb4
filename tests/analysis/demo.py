"""A study as it might come out: nine backends, three seeds of some, and most ways to end.

Its backends are certified, but for flash3, whose runs are older than that; a newer run of it was refused.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from model.attention.verify.certificate import Certificate, Check
from model.record.outcome import Outcome
from model.record.records import DesignRecord
from tests.analysis.fabricate import H200, Folder, certificate, check, number, plan

SECONDS = {
    "auto": 0.4332,
    "flash": 0.4336,
    "cudnn": 0.4205,
    "efficient": 0.468,
    "flash2": 0.4319,
    "flash3": 0.402,
    "tiled": 0.61,
    "custom": 0.49,
}
CPU = {"device": "AMD EPYC 9454 48-Core Processor", "peak": None, "gpus": 0}
SEEDS = {"auto": 3, "flash": 3, "cudnn": 3, "flash3": 3, "efficient": 3}
STEPS = 1000
DESIGN = DesignRecord(
    order="interleaved", order_seed=7, baseline={"attention": "cudnn"}, margins={"loss": 0.005}
)
# As PyTorch's and FlashAttention's are called.
FLASH = (
    "void flash::{0}_kernel<flash::Flash_{0}_kernel_traits<128, 64, 64, 4, false, false, cutlass::bfloat16_t, "
    "flash::Flash_kernel_traits<128, 64, 64, 4, cutlass::bfloat16_t>>, false, true, false, false, true, true, "
    "false, false>(flash::Flash_{0}_params)"
)


def write_demo(root: Path, study: str = "backends", cpu: bool = False, **changes: Any) -> None:
    """Fabricate the study; flash3 computes something else, and is the fastest at it."""
    for index, backend in enumerate(SECONDS):
        for seed in range(SEEDS.get(backend, 1)):
            run_id = f"{index}{seed}abcdef0123"
            factors = {"attention": backend, "seed": seed}
            fields = {
                "factors": factors,
                "block": seed + 1,
                "position": 8 * seed + index + 1,
                "design": DESIGN,
            }
            run = plan(run_id, study, backend, seed, STEPS, **(fields | changes))
            key = None if backend == "flash3" else certify(root, backend, cpu).key
            _train(Folder(root, run), backend, seed, cpu, key)
    _never_trained(root, study, changes)


def certify(root: Path, backend: str, cpu: bool = False, **changes: Any) -> Certificate:
    """A certificate as long as real ones are; flash3's is wrong, flash4 is not supported."""
    verdict = {"flash3": "wrong", "flash4": "unsupported"}.get(backend, "right")
    device = {"device": "cpu", "device_name": CPU["device"]} if cpu else {"device_name": H200}
    fields: dict[str, Any] = {
        "kernels": {
            entry: [FLASH.format({"forward": "fwd", "backward": "bwd"}[entry]), "Memset"]
            for entry in ("forward", "backward")
        },
        "checks": list(_checks(random.Random(backend), verdict == "wrong")),
        "not_looked_at": ["B1 T65 H8 K2 D256 bfloat16 causal: head dim 256; it takes up to 128"],
    }
    if verdict == "unsupported":
        reason = "flash4: needs a GPU of compute capability 10.0, this is 9.0"
        fields |= {"kernels": {}, "checks": [], "reasons": [reason]}
    fields.setdefault(
        "reasons", [f"{entry.name}: {entry.reason}" for entry in fields["checks"] if not entry.passed]
    )
    return certificate(root, backend, verdict, **(fields | device | changes))  # type: ignore[arg-type]


def _checks(draw: random.Random, wrong: bool) -> Iterator[Check]:
    times = 1500 if wrong else 1
    for variant in ("plain", "plain, fused qkv", "needle", "large logits", "huge logits", "masked gradient"):
        for tensor in ("o", "dq", "dk", "dv"):
            yield check("finite", tensor, variant=variant)
            error = times * draw.uniform(0.3, 0.7)
            yield number(tensor, error, draw.uniform(2e-3, 6e-3) * times, variant=variant)
    for name in ("same again", "gradients apart", "gradients add up"):
        yield number("dq", draw.uniform(0.3, 0.7), name=name, variant=name)
    yield check(
        "own kernels", "forward", passed=not wrong, reason="its forward runs flash2's" if wrong else None
    )
    yield check("same loss", "loss", measured=1e-4, tolerance=0.005)


def _train(folder: Folder, backend: str, seed: int, cpu: bool, key: str | None) -> None:
    draw, text = random.Random(f"{backend}{seed}"), random.Random(seed)
    folder.event("claimed", executor="slurm", host="login1")
    folder.event("submitted", executor="slurm", job_id="77_1")
    folder.start(**(CPU if cpu else {}), certificate=key)
    seconds = SECONDS[backend] * draw.gauss(1, 0.003)
    last = {"tiled": 640, "efficient": 300 if seed == 2 else STEPS}.get(backend, STEPS)
    memory = int((68 + 8 * SECONDS[backend]) * 2**30)
    for step in (1, *range(5, last + 1, 5)):
        loss = 5.9 + 5.6 * math.exp(-step / 160) + text.gauss(0, 0.18) + draw.gauss(0, 0.005)
        loss += 0.1 * (1 - math.exp(-step / 100)) * (backend == "flash3")
        nan = last == 300 and step == 300
        step_seconds = 14 if step == 1 else seconds * (1 + abs(draw.gauss(0, 0.004)))
        width = {1: 1, 5: 4}.get(step, 5)
        folder.step(step, step_seconds, width, loss=None if nan else loss, memory_bytes=memory)
    if backend == "tiled":
        folder.event("ended", outcome="timeout", reason="the time limit of 300 s was reached", after=300)
    elif last == 300:
        reason = "the loss is NaN at step 300"
        folder.end(
            "diverged", seconds=160, steps=300, final_loss=None, reason=reason, peak_memory_bytes=memory
        )
    else:
        folder.end(seconds=seconds * STEPS + 40, peak_memory_bytes=memory, final_loss=loss)


def _never_trained(root: Path, study: str, changes: dict[str, Any]) -> None:
    expected = {
        "expected_outcome": Outcome.OOM_GPU,
        "because": "it stores every score, 32 heads x 4096 x 4096",
    }
    math_run = Folder(root, plan("90math00aa11", study, "math", steps=STEPS, **(expected | changes)))
    math_run.event("claimed", executor="slurm")
    math_run.start(certificate=certify(root, "math").key)
    reason = "CUDA out of memory: tried to allocate 2.00 GiB"
    math_run.end("oom_gpu", steps=0, seconds=31, final_loss=None, reason=reason, requested_bytes=2 * 2**30)
    flash4 = Folder(root, plan("91flash4aa11", study, "flash4", steps=STEPS, **changes))
    flash4.event("claimed", executor="slurm")
    flash4.start(certificate=certify(root, "flash4").key)
    unsupported_reason = "flash4: needs a GPU of compute capability 10.0, this is 9.0"
    flash4.end(
        "unsupported", steps=0, seconds=9, final_loss=None, peak_memory_bytes=None, reason=unsupported_reason
    )
    waiting = Folder(root, plan("92wait00aa11", study, "flash2", 1, STEPS, **changes))
    waiting.event("submitted", executor="slurm", job_id="78_1")
    wrong_run = Folder(root, plan("94wrong00aa11", study, "flash3", 3, STEPS, **changes))
    wrong_run.event("claimed", executor="slurm")
    wrong_run.start(certificate=certify(root, "flash3").key)
    wrong_run.end(
        "failed", steps=0, seconds=20, final_loss=None, reason="flash3 is wrong: its certificate says why"
    )
    torn = root / study / "93torn00aa11"
    torn.mkdir()
    (torn / "run.json").write_text('{"schema_version": 1, "run_')
