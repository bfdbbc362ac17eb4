"""Times planning, submitting and watching 10,000 runs, and a job's time to its first training step.

python benchmarks/orchestration.py [--rounds 5] [--slurm]     --slurm: a Slurm cluster is available
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from itertools import chain, pairwise
from pathlib import Path

from timing import Taken, Times, add, machine, python, run, runner, show

HERE = Path(__file__).parent
BASE = """\
title: Ten thousand runs
base:
  device: cpu
  model: {dim: 32, layers: 1, heads: 2, kv_heads: 1, ffn_dim: 64, vocab_size: 300}
  data: {path: text.parquet}
  train: {steps: 1, sequence_length: 32, batch_size: 2, warmup_steps: 0, dtype: float32}
"""


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--runs", type=int, default=10_000)
    options.add_argument("--slurm", action="store_true")
    chosen = options.parse_args()
    times: Times = {}
    for _ in range(chosen.rounds):
        with tempfile.TemporaryDirectory() as name:
            add(times, one_round(Path(name), chosen.runs, chosen.slurm))
        print(machine(), file=sys.stderr)
    show(times)


def one_round(folder: Path, runs: int, slurm: bool) -> dict[str, Taken]:
    side = round(runs**0.5)
    study, root = write_study(folder, side), folder / "runs"
    backends, seeds = folder / "backends.yaml", runs // 11 + 1
    backends.write_text(
        (HERE.parent / "experiments" / "backends.yaml")
        .read_text()
        .replace("seed: [0]", f"seed: {[*range(seeds)]}")
    )
    expanded = ("expand", backends, "--scale", "laptop", "--json")
    found = {
        "python -c pass": python("pass"),
        "runner --help": runner(root, "--help"),
        f"expand {11 * seeds} cells of backends.yaml (--json)": runner(root, *expanded),
        f"plan {side * side} runs (launch --dry-run)": runner(root, "launch", study, "--dry-run"),
    }
    if not slurm:
        return found
    try:
        found |= first_step(folder)  # before the queue fills up
        return found | submitting(folder, study, side * side)
    finally:
        cancel("bare", "many-")


def write_study(folder: Path, side: int) -> Path:
    """Write a study of side x side runs, and the text that it trains on."""
    from runner.commands.data import write_corpus

    write_corpus(HERE.parent / "model", folder / "text.parquet", "*.py")
    values = ", ".join(map(str, range(1, side + 1)))
    matrix = f"matrix:\n  seed: [{values}]\n  train.steps: [{values}]\n"
    (path := folder / "many.yaml").write_text(BASE + matrix)
    return path


def submitting(folder: Path, study: Path, count: int) -> dict[str, Taken]:
    """Submit jobs that Slurm holds for ten hours, and query their status."""
    root, profile = folder / "runs", folder / "held.yaml"
    profile.write_text("executor: slurm\nmemory: 100MiB\nslurm: {options: {begin: now+10hours}}\n")
    return {
        f"submit {count} (submitit's map_array alone)": bare_submitit(folder / "bare", count),
        f"submit {count} (runner launch)": runner(root, "launch", study, "-p", profile, "--yes"),
        f"status of {count}": runner(root, "status", "many"),
        f"status --json of {count}": runner(root, "status", "many", "--json"),
        f"status of {count}, second time": runner(root, "status", "many"),
        "one sacct query for their arrays": run(["sacct", "-n", "-P", "-j", ",".join(arrays("many-"))]),
    }


def bare_submitit(folder: Path, count: int) -> Taken:
    import submitit

    executor = submitit.SlurmExecutor(folder=folder)
    begin = {"begin": "now+10hours"}
    executor.update_parameters(
        time=1, mem="100M", wckey=None, array_parallelism=1, job_name="bare", additional_parameters=begin
    )
    start = time.perf_counter()
    for first in range(0, count, 1001):
        executor.map_array(print, list(range(min(1001, count - first))))
    return Taken(time.perf_counter() - start)


# Exits at once, because a job tears torch down only after its last step.
IMPORTS = tuple(f"import {names}; os._exit(0)" for names in ("os", "os, torch"))


def first_step(folder: Path) -> dict[str, Taken]:
    """Time from the batch script's last line before srun until the first training step starts.

    Before that, the same job times the import of torch. The first run in a root waits for its backend's
    trial; later runs reuse the certificate.
    """
    (study := folder / "one.yaml").write_text(BASE)
    profile = folder / "now.yaml"
    profile.write_text(f"executor: slurm\nmemory: 3GiB\nslurm: {{setup: {json.dumps(stamps(folder))}}}\n")
    on_trial, _ = began(folder, study, profile, 0)
    whole, torch = began(folder, study, profile, 1)
    return {
        "in a job: import torch": Taken(torch),
        "in a job: srun to first step": Taken(whole),
        "  minus import torch, in the same job": Taken(whole - torch),
        "  additional time for the backend's trial": Taken(on_trial - whole),
    }


def began(folder: Path, study: Path, profile: Path, seed: int) -> tuple[float, float]:
    """Seconds from srun to a run's first step, and seconds to import torch."""
    root = folder / "runs"
    before = set(root.glob("one/*/attempt-1/steps.jsonl"))
    runner(root, "launch", study, "-p", profile, "--set", f"seed={seed}", "--yes", "--wait")
    (steps,) = set(root.glob("one/*/attempt-1/steps.jsonl")) - before
    record = json.loads(steps.read_text().splitlines()[0])
    start = datetime.fromisoformat(record["time"]).timestamp() - record["step_seconds"]
    at = [float((folder / f"stamp-{number}").read_text()) for number in range(len(IMPORTS) + 1)]
    bare, torch = (after - before for before, after in pairwise(at))
    return start - at[-1], torch - bare


def stamps(folder: Path) -> list[str]:
    """Shell lines that record the time before, between and after the imports."""
    imports = [f"{sys.executable} -c '{code}'" for code in IMPORTS]
    notes = [f"date +%s.%N > {folder}/stamp-{number}" for number in range(len(IMPORTS) + 1)]
    timed = chain.from_iterable(zip(imports, notes[1:], strict=True))
    return [
        imports[-1],
        notes[0],
        *timed,
    ]  # the first import also reads torch's files from disk, so do not time it


def arrays(name: str) -> set[str]:
    """Ids of the arrays in the queue whose names start with `name`."""
    listed = subprocess.run(["squeue", "-h", "-o", "%F|%j"], capture_output=True, text=True, check=True)
    rows = (line.split("|") for line in listed.stdout.splitlines())
    return {job_id for job_id, job in rows if job.startswith(name)}


def cancel(*names: str) -> None:
    """Cancel only the jobs that this benchmark submitted."""
    if found := set().union(*map(arrays, names)):
        subprocess.run(["scancel", *found], check=True)


if __name__ == "__main__":
    main()
