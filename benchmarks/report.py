"""Wall and CPU seconds and peak memory of collecting a study, building its report, and querying it.

python benchmarks/report.py [--runs 2000] [--records 500] [--rounds 3] [--no-sql] [--against CHECKOUT]

With --against, each round runs the same commands with the code of another checkout too, on the same files.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from statistics import median

from fabricated import HERE, fabricate

Measured = dict[str, float]


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--runs", type=int, default=2000)
    options.add_argument("--records", type=int, default=500, help="step records of each run")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--sql", action=argparse.BooleanOptionalAction, default=True)
    options.add_argument("--against", type=Path)
    chosen = options.parse_args()
    codes = {"now": HERE} | ({"before": chosen.against.resolve()} if chosen.against else {})
    found: dict[str, dict[str, list[Measured]]] = {}
    with tempfile.TemporaryDirectory() as name:
        roots = {code: Path(name) / code for code in codes}
        for root in roots.values():
            fabricate(root, chosen.runs, chosen.records)
        for turn in range(chosen.rounds):
            for code, checkout in codes.items():
                out = Path(name) / "out"
                measured = one_round(checkout, roots[code], out, first=not turn, sql=chosen.sql)
                for what, numbers in measured.items():
                    found.setdefault(what, {}).setdefault(code, []).append(numbers)
    show(found)


def one_round(checkout: Path, root: Path, out: Path, first: bool, sql: bool) -> dict[str, Measured]:
    found = {"collect everything": child(checkout, root, "collect")} if first else {}
    found["report"] = child(checkout, root, "report", "many", "--out", str(out))
    found["report"]["largest page, MB"] = max(path.stat().st_size for path in out.glob("*.html")) / 1e6
    for form in ("csv", "json", "parquet") if sql else ():
        found[f"sql, every step as {form}"] = child(checkout, root, "sql", "FROM steps", "--format", form)
    return found


def child(checkout: Path, root: Path, *arguments: str) -> Measured:
    """Run `runner` with a checkout's code; raises RuntimeError if it fails."""
    # Without -S, an editable install would import its own checkout whatever the path says.
    packages = sysconfig.get_path("purelib")
    environment = os.environ | {"PYTHONPATH": f"{checkout}{os.pathsep}{packages}"}
    command = [sys.executable, "-S", "-m", "runner", "--root", str(root), *arguments]
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=checkout, env=environment, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{arguments} ended with status {status}")
    wall = time.perf_counter() - start
    return {"s": wall, "CPU s": used.ru_utime + used.ru_stime, "peak MB": used.ru_maxrss / 1e3}


def show(found: dict[str, dict[str, list[Measured]]]) -> None:
    for what, by_code in found.items():
        for code, measured in by_code.items():
            numbers = {name: median(each[name] for each in measured) for name in measured[0]}
            print(f"{what:32} {code:7}", "  ".join(f"{value:9.1f} {name}" for name, value in numbers.items()))


if __name__ == "__main__":
    main()
