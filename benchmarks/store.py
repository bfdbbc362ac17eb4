"""Collecting many runs against DuckDB's own read_json over the same files, and the report's queries.

python benchmarks/store.py [--runs 10000] [--records 1000] [--studies 1] [--rounds 3] [--root FOLDER]

Each command is a process of its own, so that its memory can be measured; the commands take turns.
With --root the run folders are made in that folder, or found there, and left there.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from fabricated import HERE, fabricate
from timing import Taken, Times, add, machine, show

READ_JSON = """
import duckdb, sys
root, out = sys.argv[1:]
from analysis.store.steps import COLUMNS
columns = COLUMNS if {typed} else None
with duckdb.connect(out) as db:
    options = "format = 'newline_delimited', filename = true"
    options += f", columns = {{columns}}" if columns else ""
    db.execute(f"CREATE TABLE steps AS FROM read_json('{{root}}/*/*/attempt-*/steps.jsonl', {{options}})")
"""
COLLECT = """
import sys
from pathlib import Path
from analysis.store.collect import collect
print(collect(Path(sys.argv[1]), rebuild=len(sys.argv) > 2))
"""
COMMAND = """
import sys
sys.argv = ["runner", "--root", sys.argv[1], "collect"]
from runner.cli.main import main
main()
"""
TYPED, GUESSED, FULL, NOTHING, WHOLE = (
    "read_json with the columns' types",
    "read_json as it comes",
    "collect, everything",
    "collect, nothing new",
    "runner collect, nothing new",
)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--runs", type=int, default=10_000)
    options.add_argument("--records", type=int, default=1000, help="step records of each run")
    options.add_argument("--studies", type=int, default=1, help="over which the runs are spread")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--root", type=Path)
    chosen = options.parse_args()
    studies = tuple(f"s{number:02}" for number in range(chosen.studies))
    with tempfile.TemporaryDirectory() as scratch:
        root = chosen.root or Path(scratch) / "runs"
        if not root.exists():
            fabricate(root, chosen.runs, chosen.records, studies)
        print(f"{machine()}; {chosen.runs} runs x {chosen.records} step records in {chosen.studies} studies")
        reading(root, Path(scratch), chosen.rounds)
        queries(root, studies[0], chosen.rounds)


def reading(root: Path, scratch: Path, rounds: int) -> None:
    times: Times = {}
    peaks: dict[str, list[float]] = {}
    for _ in range(rounds):
        for what, code, arguments in (
            (TYPED, READ_JSON.format(typed=True), (scratch / "typed.duckdb",)),
            (FULL, COLLECT, ("rebuild",)),
            (GUESSED, READ_JSON.format(typed=False), (scratch / "guessed.duckdb",)),
            (NOTHING, COLLECT, ()),
            (WHOLE, COMMAND, ()),
        ):
            (scratch / "typed.duckdb").unlink(missing_ok=True)
            (scratch / "guessed.duckdb").unlink(missing_ok=True)
            taken, peak = child(code, root, *arguments)
            add(times, {what: taken})
            peaks.setdefault(what, []).append(peak)
    show(times, base=TYPED)
    for what, found in peaks.items():
        print(f"{what:44} peak {max(found):6.0f} MB")
    print(f"database {(root / 'results.duckdb').stat().st_size / 1e6:.0f} MB")


def child(code: str, *arguments: object) -> tuple[Taken, float]:
    """Run Python code in a process of its own; its times, and its peak memory in MB."""
    start = time.perf_counter()
    command = [sys.executable, "-c", code, *map(str, arguments)]
    process = subprocess.Popen(
        command, cwd=HERE, env=os.environ | {"PYTHONPATH": str(HERE)}, stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{code}\nended with status {status}")
    return Taken(time.perf_counter() - start, used.ru_utime + used.ru_stime), used.ru_maxrss / 1e3


def queries(root: Path, study: str, rounds: int) -> None:
    """Seconds from each of the report's queries to its whole answer as Arrow."""
    sys.path.insert(0, str(HERE))
    from analysis import charts
    from analysis.report import facts
    from analysis.store.database import open_for_reading

    report = {f"chart {name}": charts.load(name).sql for name in charts.names()}
    report |= {name: sql for name, sql in vars(facts).items() if name.endswith("_SQL")}
    with open_for_reading(root) as connection:
        start = time.perf_counter()
        facts.snapshot(connection, study)  # as every report does first
        print(f"{'the runs, once a report':44} {(time.perf_counter() - start) * 1e3:8.1f} ms", flush=True)
        for name, sql in report.items():
            found = []
            for _ in range(rounds):
                start = time.perf_counter()
                rows = connection.sql(facts.literal(sql, study)).to_arrow_table().num_rows
                found.append(time.perf_counter() - start)
            print(
                f"{name:44} {median(found) * 1e3:8.1f} ms  min {min(found) * 1e3:8.1f}  rows {rows}",
                flush=True,
            )


if __name__ == "__main__":
    main()
