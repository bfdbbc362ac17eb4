"""Times planning, submitting and watching 10,000 runs: medians of several rounds, beside bare submitit.

python benchmarks/orchestration.py [--rounds 3] [--slurm]     --slurm: a Slurm cluster is in reach
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
STUDY = """\
title: Ten thousand runs
base:
  device: cpu
  model: {dim: 32, layers: 1, heads: 2, kv_heads: 1, ffn_dim: 64, vocab_size: 300}
  data: {path: text.parquet}
  train: {steps: 1, sequence_length: 32, batch_size: 2, warmup_steps: 0, dtype: float32}
matrix:
"""


def runner(root: Path, *arguments: object) -> float:
    command = [sys.executable, "-P", "-m", "runner.cli", "--root", str(root), *map(str, arguments)]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return seconds


def bare_submitit(folder: Path, count: int) -> float:
    import submitit

    executor = submitit.SlurmExecutor(folder=folder)
    executor.update_parameters(
        time=1,
        mem="100M",
        wckey=None,
        array_parallelism=1,
        job_name="bare",
        additional_parameters={"begin": "now+10hours"},
    )
    start = time.perf_counter()
    for begin in range(0, count, 1001):
        executor.map_array(print, list(range(min(1001, count - begin))))
    return time.perf_counter() - start


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--runs", type=int, default=10_000)
    options.add_argument("--slurm", action="store_true")
    chosen = options.parse_args()
    times: dict[str, list[float]] = {}
    for _ in range(chosen.rounds):
        with tempfile.TemporaryDirectory() as name:
            for what, seconds in round_(Path(name), chosen.runs, chosen.slurm).items():
                times.setdefault(what, []).append(seconds)
    for what, taken in times.items():
        spread = f"min {min(taken):.2f}  max {max(taken):.2f}  n {len(taken)}"
        print(f"{what:36} median {statistics.median(taken):6.2f} s  {spread}")


def round_(folder: Path, runs: int, slurm: bool) -> dict[str, float]:
    from runner.corpus import write_corpus

    side = round(runs**0.5)
    values = ", ".join(map(str, range(1, side + 1)))
    (folder / "many.yaml").write_text(STUDY + f"  seed: [{values}]\n  train.steps: [{values}]\n")
    write_corpus(HERE.parent / "model", folder / "text.parquet", "*.py")
    root = folder / "runs"
    found = {
        f"plan {side * side} runs (launch --dry-run)": runner(
            root, "launch", folder / "many.yaml", "--dry-run"
        )
    }
    if slurm:
        (folder / "held.yaml").write_text(
            "executor: slurm\nmemory: 100MiB\nslurm: {options: {begin: now+10hours}}\n"
        )
        found["submit (bare submitit)"] = bare_submitit(folder / "bare", side * side)
        subprocess.run(["scancel", "--name=bare"], check=True)
        found["submit (runner launch)"] = runner(
            root, "launch", folder / "many.yaml", "-p", folder / "held.yaml", "--yes"
        )
        found["status, first time"] = runner(root, "status", "many", "--json")
        found["status, again"] = runner(root, "status", "many", "--json")
        subprocess.run(["scancel", "--user=root"], check=True)
    return found


if __name__ == "__main__":
    main()
