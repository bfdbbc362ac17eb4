"""Compares our planning time with other tools', each with its own configuration of the same cells.

python benchmarks/peers.py [--rounds 3] [--cells 1024]

The tools run in the same rounds. Peers are installed into a separate environment in a temporary folder. Tools
that are not compared, and why, are listed below the table.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from orchestration import write_study
from timing import Taken, Times, add, machine, run, runner, show

PACKAGES = ("iops-benchmark", "ReFrame-HPC", "hydra-core", "hydra-submitit-launcher")
LEFT_OUT = """\
Hydra with its submitit launcher, JUBE, NeMo-Run, Ramble: see queueing.py, which times submitting.
SEML: not tried; it needs a MongoDB server for its queue before it expands anything."""
IOPS = """\
benchmark: {{name: many, workdir: ./workdir, executor: slurm, search_method: exhaustive, repetitions: 1}}
vars:
  seed: {{type: int, sweep: {{mode: range, start: 1, end: {side}, step: 1}}}}
  steps: {{type: int, sweep: {{mode: range, start: 1, end: {side}, step: 1}}}}
command: {{template: "train {{{{ seed }}}} {{{{ steps }}}}"}}
scripts: [{{name: s, script_template: "#!/bin/sh\\n{{{{ command.template }}}}\\n"}}]
output: {{sink: {{type: csv, path: "{{{{ workdir }}}}/results.csv"}}}}
"""
REFRAME = """\
import reframe as rfm
import reframe.utility.sanity as sn

@rfm.simple_test
class Many(rfm.RunOnlyRegressionTest):
    seed, steps = parameter(range({side})), parameter(range({side}))
    valid_systems, valid_prog_environs, executable = ["*"], ["*"], "echo"

    @sanity_function
    def passes(self):
        return sn.assert_found("", self.stdout)
"""
HYDRA = """\
import hydra

@hydra.main(version_base=None, config_path=None)
def main(_config): pass

main()
"""


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--cells", type=int, default=1024)
    chosen = options.parse_args()
    side, times = round(chosen.cells**0.5), Times()
    with tempfile.TemporaryDirectory() as name:
        programs = install(Path(name))
        for number in range(chosen.rounds):
            (folder := Path(name) / f"round-{number}").mkdir()
            add(times, one_round(folder, programs, side))
            print(machine(), file=sys.stderr)
        show(times, base=ours(side))
        print(versions(programs) + LEFT_OUT)


def install(folder: Path) -> Path:
    """Install the peers; returns the folder of their programs."""
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    programs = folder / "venv" / "bin"
    subprocess.run([programs / "python", "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return programs


def versions(programs: Path) -> str:
    code = "import sys; from importlib.metadata import version as v; [print(p, v(p)) for p in sys.argv[1:]]"
    command = [programs / "python", "-c", code, *PACKAGES]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def ours(side: int) -> str:
    return f"runner launch --dry-run, {side * side} cells"


def one_round(folder: Path, programs: Path, side: int) -> dict[str, Taken]:
    (folder / "iops.yaml").write_text(IOPS.format(side=side))
    (folder / "checks.py").write_text(REFRAME.format(side=side))
    (folder / "app.py").write_text(HYDRA)
    (folder / "workdir").mkdir()
    study, root = write_study(folder, side), folder / "runs"
    reframe = [programs / "reframe", "--prefix", folder / "reframe"]
    return {
        "runner --help": runner(root, "--help"),
        "iops --help": run([programs / "iops", "--help"]),
        "reframe --help": run([programs / "reframe", "--help"]),
        "Hydra app --help": run([programs / "python", "app.py", "--help"], folder),
        ours(side): runner(root, "launch", study, "--dry-run"),
        "iops run --dry-run (writes its scripts)": run(
            [programs / "iops", "run", "iops.yaml", "--dry-run"], folder
        ),
        "reframe --list": run([*reframe, "-c", "checks.py", "--list"], folder),
    }


if __name__ == "__main__":
    main()
