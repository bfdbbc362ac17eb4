"""Studies for the browser: one with everything on its pages and hostile strings in it, and extreme ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from model.record import files
from model.record.imported import Finding, Imported, ImportedStep
from model.record.records import DesignRecord
from tests.analysis.demo import certify
from tests.analysis.fabricate import START, Folder, completed, plan
from tests.analysis.store.test_imported import write_log
from tests.analysis.swept import write_sweep

STUDY = "theirs"  # the study that `write_log` imports to
AFTER, SWEEP = "after", "sweep"
# What could leave its place in HTML, in a script, in CSS, in a URL or in a format string, and what turns text around.
EVIL = (
    '<img src=x onerror="window.hacked=1"></script><script>window.hacked=1</script>\u2028\u2029\u202eegap\u202c'
    "'\"`${1}{{1}}%s🧨https://example.invalid/"
)
DESIGN = DesignRecord(
    order="interleaved", order_seed=7, baseline={"attention": "cudnn"}, margins={"loss": 0.005}
)
SECONDS = {"auto": 0.41, "cudnn": 0.40, EVIL: 0.47}
EXTREMES = ("planned", "memory", "nan", "many")


def write_hostile(root: Path) -> None:
    """Two groups of two runs, one single run, five that ended badly or not yet, and an imported one."""
    for place, (label, seconds) in enumerate(SECONDS.items()):
        for seed in range(1 if label == EVIL else 2):
            _trained(root, f"{place}{seed}abcdef0123", label, seed, seconds)
    bad = {
        "math": {"outcome": "oom_gpu"},
        "tiled": {"outcome": "diverged"},
        "flash3": {"outcome": "failed"},
    }
    for place, (backend, ending) in enumerate(bad.items()):
        folder = Folder(root, _plan(f"9{place}abcdef0123", backend, 0))
        attempt = folder.start(certificate=certify(root, backend, **_names()).key)
        (attempt / "stderr.log").write_text(f"Traceback: {EVIL}\n" + "x" * 400 + "\n", encoding="utf-8")
        folder.end(**ending, steps=0, final_loss=None, reason=f"{backend}: {EVIL}")
    Folder(root, _plan("99abcdef0123", "flash2", 0))
    _imported(root)
    certify(root, "flash3", case=None, **_names())  # as `runner verify` makes them
    torn = root / STUDY / "93torn00aa11"
    torn.mkdir()
    (torn / "run.json").write_text('{"schema_version": 1, "run_')


def write_after(root: Path) -> None:
    """The hostile study again: a group became slower, another is new, most are gone."""
    for place, (label, seconds) in enumerate({"auto": 0.47, "flash": 0.4, EVIL: 0.47}.items()):
        for seed in range(1 if label == EVIL else 2):
            _trained(root, f"7{place}{seed}abcdef012", label, seed, seconds, AFTER)


def write_swept(root: Path) -> None:
    """Lines with long names over one numeric axis; some of them end where memory did."""
    axes = {
        "attention": ["auto", "flash"],
        "train.sequence_length": [1024, 2048, 4096],
        "train.compile": [False, True],
    }
    write_sweep(root, axes, seeds=1, oom={"flash": 2048}, study=SWEEP)


def _names() -> dict[str, Any]:
    return {
        "kernels": {"forward": [3 * EVIL], "backward": ["k" * 300]},
        "not_looked_at": [EVIL],
    }


def _plan(run_id: str, label: str, seed: int, study: str = STUDY) -> Any:
    return plan(
        run_id,
        study,
        "custom" if label == EVIL else label,
        seed,
        100,
        title=f"Attention backends {EVIL}",
        factors={"attention": label, "seed": seed},
        group=f"g-{label}",
        design=DESIGN,
        block=seed + 1,
        position=10 * seed + len(label) % 10 + 1,
        data_file=f"/data/{EVIL}",
        why=[f"experiments/{EVIL}.yaml:4:3"],
    )


def _trained(root: Path, run_id: str, label: str, seed: int, seconds: float, study: str = STUDY) -> None:
    folder = Folder(root, _plan(run_id, label, seed, study))
    backend = folder.run.config.attention
    folder.start(certificate=certify(root, backend, **_names()).key)
    folder.step(1, seconds=9.0, steps=1)
    folder.step(5, seconds=seconds, steps=4)
    for step in range(10, 101, 5):
        duration = seconds * (1 + 0.002 * math.sin(step + seed) + 0.001 * seed)
        folder.step(step, duration, loss=9 - step / 50 + 0.001 * seed)
    folder.end(final_loss=7.0 + 0.001 * seed)


def _imported(root: Path) -> None:
    finding = Finding(check="loss", level="error", sentence=f"its loss is off: {EVIL}", evidence={})
    source = Imported(
        format="lsai", file=f"/logs/{EVIL}.jsonl", sha256="0" * 64, imported_at=START, version="0.1.0",
        records=100, findings=[finding],
    )  # fmt: skip
    fields = {"group": "g-fa3", "factors": {"attention": "fa3"}, "attention": "fa3", "imported": source}
    folder = write_log(root, "log-fa30000000", **fields)
    (folder / "attempt-1" / "steps.jsonl").unlink()
    for step in range(5, 101, 5):
        line = ImportedStep(step=step, steps=5, loss=9 - step / 50, step_seconds=0.45, tokens=20480)
        files.append(folder / "attempt-1" / "steps.jsonl", line)


def write_extremes(root: Path) -> None:
    """No run has started; every run ran out of memory; every loss is NaN; 60 groups over three axes."""
    Folder(root, plan("00planned0123", "planned", title="Nothing has run"))
    for number in range(3):
        folder = Folder(root, plan(f"0{number}memory0123", "memory", f"backend{number}", title="None fits"))
        folder.start()
        folder.end("oom_gpu", steps=0, final_loss=None, reason="CUDA out of memory")
    for number in range(2):
        folder = Folder(
            root, plan(f"0{number}nan01230123", "nan", f"backend{number}", title="No loss is finite")
        )
        folder.start()
        for step in (1, *range(5, 101, 5)):
            folder.step(step, loss=None, grad_norm=None)
        folder.end(final_loss=None)
    for number in range(60):
        axes = {
            "attention": f"backend{number % 5}",
            "batch": 2 ** (number // 5 % 4),
            "sequence": 1024 * (number // 20 + 1),
        }
        fields = {"factors": axes | {"seed": 0}, "group": f"g-{number}", "steps": 20, "title": "Sixty groups"}
        completed(
            root,
            f"{number:02}many012301",
            0.3 + 0.01 * number,
            study="many",
            attention=axes["attention"],
            **fields,
        )
