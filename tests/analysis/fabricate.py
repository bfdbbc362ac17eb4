"""Run folders and certificates as launchers and trainers write them, through the records' own models."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from model.attention.verify.certificate import Certificate, Check, Verdict, describe
from model.attention.verify.certificate import key as certificate_key
from model.measure.floor import floor, shapes, tokens
from model.measure.flops import flop_per_token, of_run
from model.record import files
from model.record.case import Case
from model.record.config import DataConfig, InferenceConfig, ModelConfig, RunConfig, TrainConfig
from model.record.folder import DECODED, PROFILE
from model.record.outcome import Outcome
from model.record.records import (
    AuditedTensor,
    AuditRecord,
    DecodeRecord,
    LedgerEvent,
    Manifest,
    Provenance,
    Result,
    RunRecord,
    StepRecord,
)
from model.record.speed import (
    CEILINGS_FOLDER,
    PASSES,
    Ceilings,
    LoadClocks,
    NodeRecord,
    ProductTiming,
    StepProfile,
    Timing,
    ceilings_key,
)

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
H200 = "NVIDIA H200"
LLAMA = ModelConfig()  # the 8B model of the study that the project grew out of
CASE = Case(
    device="cuda", dtype="bfloat16", batch=1, sequence_length=4096, heads=32, kv_heads=8, head_dim=128
)


def plan(
    run_id: str,
    study: str = "backends",
    attention: str = "auto",
    seed: int = 0,
    steps: int = 100,
    model: ModelConfig = LLAMA,
    **changes: Any,
) -> RunRecord:
    """A planned run; `changes` are fields of RunRecord."""
    fields: dict[str, Any] = {
        "run_id": run_id,
        "group": f"g-{attention}",
        "study": study,
        "study_file": f"experiments/{study}.yaml",
        "title": "Attention backends compared",
        "factors": {"attention": attention, "seed": seed},
        "config": RunConfig(
            attention=attention,
            seed=seed,
            model=model,
            data=DataConfig(path="train.parquet"),
            train=TrainConfig(steps=steps),
        ),
        "expected_outcome": Outcome.COMPLETED,
        "because": None,
        "why": [f"experiments/{study}.yaml:4:3"],
        "scale": "full",
        "profile": "alps",
        "memory_bytes": None,
        "time_limit_seconds": 3600,
        "peak_flops_override": None,
        "data_file": "/data/train.parquet",
        "tokenizer": "bytes",
        "data_fingerprint": "f" * 16,
        "provenance": Provenance(
            git_sha="a1b2c3d4e5f60718293a4b5c6d7e8f9012345678",
            git_dirty=False,
            command=["runner"],
            version="0.1.0",
        ),
        "created_at": START,
    }
    return RunRecord(**(fields | changes))


class Folder:
    """A run folder being written."""

    def __init__(self, root: Path, run: RunRecord) -> None:
        self.run = run
        self.path = root / run.study / run.run_id
        self.path.mkdir(parents=True)
        files.write(self.path / "run.json", run)

    def event(self, event: str, attempt: int = 1, after: float = 0, **fields: Any) -> None:
        """A ledger line."""
        moment = START + timedelta(seconds=after)
        line = LedgerEvent(time=moment, event=event, attempt=attempt, **fields)  # type: ignore[arg-type]
        files.append(self.path / "ledger.jsonl", line)

    def start(
        self, attempt: int = 1, device: str | None = H200, peak: float | None = 989.4e12, **fields: Any
    ) -> Path:
        """The manifest, in a new attempt folder."""
        path = self.path / f"attempt-{attempt}"
        path.mkdir()
        train = self.run.config.train
        values: dict[str, Any] = {
            "run_id": self.run.run_id,
            "attempt": attempt,
            "started_at": START + timedelta(hours=attempt - 1),
            "host": "nid001234",
            "pid": 1,
            "pid_started": 1.0,
            "slurm": {"SLURM_JOB_ID": "77"},
            "software": {"python": "3.11.7", "torch": "2.13.0", "driver": "570.86"},
            "device_name": device,
            "gpus": 1,
            "flop_per_token": flop_per_token(self.run.config.model, train.sequence_length),
            "peak_flops": peak,
            "peak_source": peak and "a datasheet",
        }
        files.write(path / "manifest.json", Manifest(**(values | fields)))
        return path

    def step(self, step: int, seconds: float = 0.4, steps: int = 5, attempt: int = 1, **fields: Any) -> None:
        """A step record, of a full batch unless `fields` says otherwise."""
        train = self.run.config.train
        values: dict[str, Any] = {
            "step": step,
            "steps": steps,
            "time": START + timedelta(hours=attempt - 1, seconds=step * seconds),
            "loss": 10 - step / 100,
            "learning_rate": 5e-5,
            "grad_norm": 1.0,
            "step_seconds": seconds,
            "tokens": steps * train.sequence_length * train.batch_size,
            "training_tokens": steps * train.sequence_length * train.batch_size // 2,
            "memory_bytes": 70 * 2**30,
        }
        line = StepRecord(**(values | fields))
        files.append(self.path / f"attempt-{attempt}" / "steps.jsonl", line)

    def audit(self, step: int, attempt: int = 1, **measured: float | None) -> None:
        """An audit of 0.8 allowed roundings in each tensor; `measured` says other errors than 0.4."""
        failed_tensors = [name for name, error in measured.items() if error is None or error > 0.8]
        place = "row 300, head 6"
        line = AuditRecord(
            step=step,
            time=START + timedelta(hours=attempt - 1, seconds=step),
            layer=3,
            sample=0,
            first_head=4,
            heads=4,
            rows=4096,
            tensors={
                name: AuditedTensor(
                    measured=measured.get(name, 0.4), tolerance=0.8, relative_error=4e-3, place=place
                )
                for name in ("o", "dq", "dk", "dv")
            },
            passed=not failed_tensors,
            reason="; ".join(f"{name} is off" for name in failed_tensors) or None,
            seconds=0.02,
        )
        files.append(self.path / f"attempt-{attempt}" / "audits.jsonl", line)

    def end(self, outcome: str = "completed", attempt: int = 1, seconds: float = 60, **fields: Any) -> None:
        """The attempt's own word of how it ended."""
        start = START + timedelta(hours=attempt - 1)
        values: dict[str, Any] = {
            "run_id": self.run.run_id,
            "attempt": attempt,
            "outcome": Outcome(outcome),
            "reason": None,
            "steps": self.run.config.train.steps,
            "final_loss": 9.0,
            "peak_memory_bytes": 71 * 2**30,
            "started_at": start,
            "ended_at": start + timedelta(seconds=seconds),
            "wall_seconds": seconds,
        }
        files.write(self.path / f"attempt-{attempt}" / "result.json", Result(**(values | fields)))


def completed(root: Path, run_id: str, seconds: float = 0.4, **changes: Any) -> Folder:
    """A run that completed, with a record for step 1 and then one every 5 steps."""
    folder = Folder(root, plan(run_id, **changes))
    folder.event("claimed", executor="local", host="login1", pid=7)
    folder.start()
    folder.step(1, seconds=9.0, steps=1)
    folder.step(5, seconds=seconds, steps=4)
    for step in range(10, folder.run.config.train.steps + 1, 5):
        folder.step(step, seconds=seconds)
    folder.end()
    folder.event("ended", outcome="completed", after=61)
    return folder


def check(name: str, what: str, **fields: Any) -> Check:
    """A check that passed unless `fields` say otherwise."""
    values = {"case": describe(CASE), "variant": "plain", "passed": True}
    return Check.model_validate({"name": name, "what": what} | values | fields)


def number(what: str, measured: float | None, relative: float | None = 4e-3, **fields: Any) -> Check:
    """A result held to a tolerance of 0.8 roundings."""
    passed = measured is not None and measured <= 0.8
    reason = (
        None if passed else f"{what} is off by {measured or math.inf:.3g} roundings where 0.8 are allowed"
    )
    judged = {"passed": passed, "reason": reason}
    values = {"measured": measured, "tolerance": 0.8, "relative_error": relative}
    return check(fields.pop("name", "right"), what, **(values | judged | fields))


def _checks(wrong: bool) -> list[Check]:
    error, relative = (1270.0, 4.9) if wrong else (0.5, 4e-3)
    return [
        number("o", error, relative),
        number("dq", 0.6, variant="large logits", relative=0.3),
        *(number(tensor, 0.4, 5e-3) for tensor in ("dq", "dk", "dv")),
        check("finite", "o"),
        check("own kernels", "forward"),
        check("same loss", "loss", measured=1e-4, tolerance=0.005),
    ]


def certificate(root: Path, attention: str, verdict: Verdict = "right", **changes: Any) -> Certificate:
    """A certificate as a gate or `runner verify` leaves it; `changes` are fields of Certificate."""
    checks = [] if verdict == "unsupported" else _checks(wrong=verdict == "wrong")
    fields: dict[str, Any] = {
        "backend": attention,
        "verdict": verdict,
        "reasons": [f"{check.name}: {check.reason}" for check in checks if not check.passed],
        "device": "cuda",
        "device_name": H200,
        "software": {"python": "3.11.7", "torch": "2.13.0", "triton": "3.5.0"},
        "code": f"{attention:0<64}",
        "case": CASE,
        "kernels": {"forward": [f"void {attention}::forward_kernel"], "backward": [f"{attention}_backward"]},
        "deterministic": True,
        "graph_break": "",
        "checks": checks,
        "seconds": 12.5,
        "created_at": START,
    } | changes
    identity = [fields[name] for name in ("backend", "code", "case", "device_name", "software")]
    record = Certificate.model_validate({"key": certificate_key(*identity)} | fields)
    folder = root / ".certificates"
    folder.mkdir(exist_ok=True)
    files.write(folder / f"{record.key}.json", record)
    return record


def timing(seconds: float, repeats: int = 9) -> Timing:
    """A median with quartiles five percent around it."""
    return Timing(seconds=seconds, seconds_25=0.95 * seconds, seconds_75=1.05 * seconds, repeats=repeats)


def ceilings(config: RunConfig, flops: float = 700e12, bandwidth: float = 4e12) -> Ceilings:
    """A GPU on which every product has one rate."""
    timed = [
        ProductTiming(
            step=step, inputs=inputs, outputs=outputs, tokens=tokens(config), columns=outputs,
            timing=timing(2 * tokens(config) * inputs * outputs / flops),
        )
        for inputs, outputs in shapes(config.model, config.parallel.tensor) for step in PASSES
    ]  # fmt: skip
    clocks = LoadClocks(graphics_mhz=1755, memory_mhz=3201, power_limit_watts=700)
    size = 3 * 2**29
    return Ceilings(
        products=timed,
        traffic_bytes=size,
        traffic=timing(size / bandwidth),
        launch=timing(4e-6),
        clocks=clocks,
    )


def on_node(root: Path, run: RunRecord, host: str = "nid001234") -> dict[str, Any]:
    """Write the ceilings of a run's GPU; gives what the manifest of its attempt says of them."""
    measured, software = ceilings(run.config), {"torch": "2.13.0", "driver": "570.86"}
    dtype, shape = run.config.section.dtype, shapes(run.config.model, run.config.parallel.tensor)
    key = ceilings_key(host, (H200, "GPU-1"), software, dtype, shape, tokens(run.config))
    record = NodeRecord(
        key=key, node=host, device_name=H200, gpu_uuid="GPU-1", dtype=dtype, software=software,
        measured=measured, seconds=4.5, measured_at=START,
    )  # fmt: skip
    (root / run.study / CEILINGS_FOLDER).mkdir(parents=True, exist_ok=True)
    files.write(root / run.study / CEILINGS_FOLDER / f"{key}.json", record)
    return {"ceilings": key, "floor": floor(run.config, measured)}


def profile(
    folder: Folder,
    attempt: int = 1,
    hidden: dict[str, float] | None = None,
    decoded: dict[str, float] | None = None,
    by_name: bool | None = None,
    **seconds: float,
) -> None:
    """Where the time of a step goes, as the attempt wrote it.

    Args:
        hidden: seconds of parts that other work hides.
        decoded: the parts of a decoded token.
        by_name: whether attention was told by its kernels' names.
        seconds: the parts of a step.
    """
    parts = [
        {
            "phase": phase,
            "part": part,
            "seconds": value,
            "hidden_seconds": (hidden or {}).get(part),
            "by_name": by_name,
        }
        for phase, phase_seconds in (("step", seconds), ("decode", decoded or {}))
        for part, value in phase_seconds.items()
    ]
    values = {"run_id": folder.run.run_id, "attempt": attempt, "steps": 2, "parts": parts}
    record = StepProfile.model_validate(values | {"step_seconds": sum(seconds.values())})
    files.write(folder.path / f"attempt-{attempt}" / PROFILE, record)


def inferred(
    root: Path,
    backend: str,
    seconds: float = 0.1,
    decode_seconds: float | None = 0.01,
    profiled: bool = False,
    cuda_graphs: bool = False,
    **changes: Any,
) -> Folder:
    """A completed run of inference: ten prefills, the first two of warm-up and slow, and four decoded positions.

    Args:
        decode_seconds: of the positions in the middle; None: it decodes nothing.
        profiled: with the ceilings of its GPU, and profiles in which it is idle for a tenth.
    """
    section = InferenceConfig(
        steps=10, warmup_steps=2, batch_size=2, prompt_length=1000, new_tokens=4 if decode_seconds else 0,
        cuda_graphs=cuda_graphs,
    )  # fmt: skip
    settings = {"attention": backend, "task": "inference", "data": DataConfig(path="text.parquet")}
    config = RunConfig(**settings, inference=section)  # type: ignore[arg-type]
    run_id = changes.pop("run_id", f"{backend}-infers")
    changes = {"data_file": "/data/text.parquet"} | changes
    run = plan(run_id, study="inference", attention=backend, config=config, **changes)
    folder = Folder(root, run)
    folder.start(flop_per_token=of_run(config), **(on_node(root, run) if profiled else {}))
    for step in range(1, 11):
        prefill = {"loss": None, "learning_rate": None, "grad_norm": None, "training_tokens": None}
        folder.step(step, 9 * seconds if step < 3 else seconds, 1, **prefill, tokens=2000)
    for index, factor in enumerate((0.5, 1, 1, 2) if decode_seconds else ()):
        record = DecodeRecord(
            position=1000 + index, time=START, seconds=factor * (decode_seconds or 0), token_ids=[7, index]
        )
        files.append(folder.path / "attempt-1" / DECODED, record)
    folder.end(steps=10, final_loss=None)
    if profiled:
        shares = {"products": 0.6, "attention": 0.2, "elementwise": 0.1, "idle": 0.1}
        step, token = (
            {part: share * total for part, share in shares.items()}
            for total in (seconds, decode_seconds or 0)
        )
        profile(folder, decoded=token if decode_seconds else None, **step)
    return folder
