"""Compares how long it takes, with us and with other tools, until every run of a study is in Slurm's queue.

. FOLDER/env; python benchmarks/queueing.py --programs BIN [--rounds 3] [--cells 256]

FOLDER is that of a cluster of its own (tests/slurm/cluster.sh up FOLDER), whose queue is empty. BIN holds the
peers' programs: `pip install` PACKAGES into a new environment, and JUBE and Ramble from clones of their
repositories (Ramble's requirements.txt, then a link in BIN to its bin/ramble). Slurm holds all jobs back for
ten hours, so that only expanding and submitting are timed. Each tool says in its own way what varies, except
NeMo-Run, which has none: there it is a loop.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from orchestration import write_study
from timing import Taken, Times, add, machine, show

PACKAGES = (
    "hydra-core",
    "hydra-submitit-launcher",
    "iops-benchmark",
    "ReFrame-HPC",
    "nemo-run",
    "leptonai==0.27.3",
)
PATIENCE_SECONDS = 900
HELD = "now+10hours"
PROFILE = f"executor: slurm\nmemory: 100MiB\nslurm: {{options: {{begin: {HELD}}}}}\n"


class Peer(NamedTuple):
    """What a user of it writes, and the commands that submit all cells, one after the other."""

    files: dict[str, str]
    commands: list[list[object]]


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--programs", type=Path, required=True)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--cells", type=int, default=256)
    chosen = options.parse_args()
    if queued():
        sys.exit("the cluster's queue is not empty: this needs a cluster of its own")
    side, times, submissions = round(chosen.cells**0.5), Times(), dict[str, int]()
    for _ in range(chosen.rounds):
        with tempfile.TemporaryDirectory() as name:
            for peer, found in peers(chosen.programs.absolute(), side).items():
                (folder := Path(name) / peer).mkdir()
                taken, submissions[peer] = submit(folder, found, side)
                add(times, {f"{peer}: {side * side} cells in the queue": taken})
        print(machine(), file=sys.stderr)
    show(times)
    print("submissions:", ", ".join(f"{peer} {number}" for peer, number in submissions.items()))


def submit(folder: Path, peer: Peer, side: int) -> tuple[Taken, int]:
    """Time it until the queue holds all cells; returns also how many submissions Slurm took for them."""
    if not peer.files:
        write_study(folder, side)
        (folder / "held.yaml").write_text(PROFILE)
    for name, text in peer.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    start = time.perf_counter()
    try:
        for command in peer.commands:
            last = command is peer.commands[-1]
            follow(command, folder, side * side if last else None)
        taken = Taken(time.perf_counter() - start)
        return taken, len({job.split("_")[0] for job in queued()})
    finally:
        clear()


def follow(command: list[object], folder: Path, cells: int | None) -> None:
    """Run it to its end, or until so many are queued: a tool that waits for its jobs is stopped."""
    with (folder / "log").open("a") as log:
        environment = os.environ | {"NEMORUN_HOME": str(folder)}
        process = subprocess.Popen(
            [*map(str, command)], cwd=folder, stdout=log, stderr=log, env=environment, start_new_session=True
        )
        until = time.monotonic() + PATIENCE_SECONDS
        while len(queued()) < cells if cells else process.poll() is None:
            if time.monotonic() > until or process.poll():
                raise RuntimeError(f"{command}\n{(folder / 'log').read_text()[-2000:]}")
            time.sleep(0.1)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def queued() -> list[str]:
    """Ids of all jobs in the queue, each task of an array by itself."""
    asked = subprocess.run(["squeue", "-h", "-r", "-o", "%i"], capture_output=True, text=True, check=True)
    return asked.stdout.split()


def clear() -> None:
    """Cancel all jobs, and wait until none is left."""
    while jobs := {job.split("_")[0] for job in queued()}:
        subprocess.run(["scancel", *jobs], check=False)
        time.sleep(0.1)


def peers(programs: Path, side: int) -> dict[str, Peer]:
    values = ",".join(map(str, range(1, side + 1)))
    python = programs / "python"
    vary = [f"+seed={values}", f"+steps={values}", f"hydra.launcher.array_parallelism={side * side}"]
    held = f"+hydra.launcher.additional_parameters.begin={HELD}"
    reframe = [programs / "reframe", "--prefix", "out", "-C", "site.py", "-c", "checks.py", "--run"]
    ramble = [programs / "ramble", "-D", "workspace"]
    ours = [sys.executable, "-P", "-m", "runner", "--root", "runs"]
    return {
        "runner": Peer({}, [[*ours, "launch", "many.yaml", "-p", "held.yaml", "--yes"]]),
        "hydra-submitit-launcher": Peer(
            {"app.py": HYDRA}, [[python, "app.py", "-m", "hydra/launcher=submitit_slurm", *vary, held]]
        ),
        "iops": Peer(
            {"iops.yaml": IOPS.format(side=side), "workdir/.keep": ""},
            [[programs / "iops", "run", "iops.yaml", "--parallel", side * side]],
        ),
        "jube": Peer({"jube.yaml": JUBE.format(values=values)}, [[programs / "jube", "run", "jube.yaml"]]),
        "ramble": Peer(
            {
                "workspace/configs/ramble.yaml": RAMBLE.format(values=values),
                "workspace/configs/execute_experiment.tpl": RAMBLE_JOB,
            },
            [[*ramble, "workspace", "setup"], [*ramble, "on"]],
        ),
        "reframe": Peer({"checks.py": REFRAME.format(side=side), "site.py": REFRAME_SITE}, [reframe]),
        "nemo-run": Peer({"many.py": NEMO.format(side=side)}, [[python, "many.py"]]),
    }


HYDRA = """\
import hydra

@hydra.main(version_base=None, config_path=None)
def main(_config): pass

main()
"""
IOPS = """\
benchmark: {{name: many, workdir: ./workdir, executor: slurm, search_method: exhaustive, repetitions: 1}}
vars:
  seed: {{type: int, sweep: {{mode: range, start: 1, end: {side}, step: 1}}}}
  steps: {{type: int, sweep: {{mode: range, start: 1, end: {side}, step: 1}}}}
command: {{template: "true {{{{ seed }}}} {{{{ steps }}}}"}}
scripts:
  - name: s
    submit: sbatch
    script_template: |
      #!/bin/bash
      #SBATCH --begin=now+10hours
      #SBATCH --mem=10M
      {{{{ command.template }}}}
output: {{sink: {{type: csv, path: "{{{{ workdir }}}}/results.csv"}}}}
"""
JUBE = """\
name: many
outpath: out
parameterset:
  name: cells
  parameter:
    - {{name: seed, type: int, _: "{values}"}}
    - {{name: steps, type: int, _: "{values}"}}
step:
  name: submit
  use: cells
  do: {{done_file: ready, _: "sbatch --begin=now+10hours --mem=10M --wrap 'true $seed $steps'"}}
"""
RAMBLE = """\
ramble:
  variables:
    {{batch_submit: 'sbatch {{execute_experiment}}', mpi_command: '', processes_per_node: 1, n_nodes: 1}}
  applications:
    hostname:
      workloads:
        serial:
          experiments:
            many_{{seed}}_{{steps}}:
              variables: {{seed: [{values}], steps: [{values}]}}
              matrix: [seed, steps]
  spack: {{packages: {{}}, environments: {{}}}}
"""
RAMBLE_JOB = """\
#!/bin/bash
#SBATCH --begin=now+10hours
#SBATCH --mem=10M
cd "{experiment_run_dir}"
{command}
"""
REFRAME = """\
import reframe as rfm
import reframe.utility.sanity as sn

@rfm.simple_test
class Many(rfm.RunOnlyRegressionTest):
    seed, steps = parameter(range({side})), parameter(range({side}))
    valid_systems, valid_prog_environs, executable = ["*"], ["*"], "true"

    @sanity_function
    def passes(self):
        return sn.assert_found("", self.stdout)
"""
REFRAME_SITE = """\
nodes = {
    "name": "nodes", "scheduler": "slurm", "launcher": "srun", "environs": ["builtin"], "max_jobs": 100000,
    "access": ["--begin=now+10hours", "--mem=10M"],
}
site_configuration = {
    "systems": [{"name": "here", "hostnames": [".*"], "partitions": [nodes]}],
    "environments": [{"name": "builtin"}],
}
"""
NEMO = """\
from pathlib import Path

import nemo_run as run

if __name__ == "__main__":
    executor = run.SlurmExecutor(
        account="root", partition="debug", mem="10M", time="00:01:00", packager=run.Packager(),
        tunnel=run.LocalTunnel(job_dir=str(Path("experiments").absolute())),
        additional_parameters={{"begin": "now+10hours"}},
    )
    with run.Experiment("many") as experiment:
        for seed in range({side}):
            for steps in range({side}):
                script = run.Script(inline=f"true {{seed}} {{steps}}")
                experiment.add(script, executor=executor.clone(), name=f"cell-{{seed}}-{{steps}}")
        experiment.run(detach=True)
"""


if __name__ == "__main__":
    main()
