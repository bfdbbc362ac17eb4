"""A real four-node Slurm cluster for the tests of this folder."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("cluster.sh")
COMMANDS = ("slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd", "sbatch", "sacct")


def missing() -> str | None:
    """Why there can be no cluster here."""
    if os.geteuid() != 0:
        return "a Slurm cluster needs root"
    path = os.environ["PATH"] + ":/usr/sbin"
    absent = [command for command in COMMANDS if not shutil.which(command, path=path)]
    return f"not installed: {', '.join(absent)}; `make system` installs them" if absent else None


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which Slurm's commands reach a cluster that this fixture started."""
    if reason := missing():
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("slurm")
    subprocess.run([SCRIPT, "up", folder], check=True, timeout=180)
    yield {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": os.environ["PATH"] + ":/usr/sbin"}
    subprocess.run([SCRIPT, "down", folder], check=True, timeout=60)
