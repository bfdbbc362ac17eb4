"""What containers/ builds, without a container: its commands run in an environment that has NVIDIA's torch.

Packages here are metadata, which is all that pip decides by. Their modules are those of the tests' own environment,
but can be imported only where the metadata is.
"""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.conftest import PATIENCE_SECONDS, REPOSITORY, environment

CONTAINERS = REPOSITORY / "containers"
HOME = "/opt/assay"
IMAGE = {"torch": "2.11.0a0+gitabc.nv26.02", "triton": "3.6.0+git1a2b.nvinternal"}
ELSEWHERE = """
import os, sys
from importlib.machinery import PathFinder

class Elsewhere:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if path is None and any(os.path.exists(f"{folder}/{name}.there") for folder in sys.path):
            return PathFinder.find_spec(name, HERE)

sys.meta_path.append(Elsewhere)
"""


def instructions(word):
    """The arguments of this instruction of the Containerfile, in order."""
    return re.findall(rf"^{word} (.+)$", (CONTAINERS / "Containerfile").read_text(), re.MULTILINE)


def closure(names):
    """The packages that are installed here among these and those that they require, by name."""
    queue, distributions = list(names), {}
    while queue:
        name = queue.pop().lower().replace("_", "-")
        if name in distributions or not installed(name):
            continue
        distributions[name] = importlib.metadata.distribution(name)
        requires = map(Requirement, distributions[name].requires or [])
        queue += [need.name for need in requires if not need.marker or need.marker.evaluate({"extra": ""})]
    return distributions


def installed(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def metadata(name, version, requires=()):
    needs = "".join(f"Requires-Dist: {need}\n" for need in requires)
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"


def described(name, version, text, modules=()):
    """The files of an installed package, or of a wheel, by name."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    files = {f"{module}.there": "" for module in modules} | {
        f"{info}/METADATA": text,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    return {**files, f"{info}/RECORD": "".join(f"{file},,\n" for file in files)}


def installed_files(distribution, version=None):
    """Those of a package that is installed here, under its own version or another."""
    text = distribution.read_text("METADATA")
    version = version or distribution.version
    text = re.sub(r"(?m)^Version: .*$", f"Version: {version}", text, count=1)
    parts = [file.parts[0] for file in distribution.files or [] if not file.parts[0].startswith((".", "__"))]
    modules = {part.partition(".")[0] for part in parts if not part.endswith(".dist-info")}
    return described(distribution.metadata["Name"].lower(), version, text, modules)


def wheel(folder, files):
    info = next(name for name in files if name.endswith("/METADATA")).removesuffix(".dist-info/METADATA")
    with zipfile.ZipFile(folder / f"{info}-py3-none-any.whl", "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


class Image:
    """An environment with the build's files, and torch or none; its packages come from `offered`."""

    def __init__(self, folder, *has):
        self.folder, self.home, self.offered = folder, folder / HOME[1:], folder / "offered"
        self.offered.mkdir(parents=True)
        venv.create(folder / "env", with_pip=True)
        self.site = next((folder / "env").glob("lib/python*/site-packages"))
        (self.site / "elsewhere.py").write_text(ELSEWHERE.replace("HERE", repr(sys.path)))
        (self.site / "elsewhere.pth").write_text("import elsewhere\n")
        for name, distribution in closure(has).items():
            for file, text in installed_files(distribution, IMAGE.get(name)).items():
                (self.site / file).parent.mkdir(exist_ok=True)
                (self.site / file).write_text(text)
        needs = map(
            Requirement, tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["dependencies"]
        )
        for name, distribution in closure(["hatchling", *(need.name for need in needs)]).items():
            if name not in IMAGE:
                wheel(self.offered, installed_files(distribution))
        self.offer("nvidia-ml-py", "12.575")
        for name in ("torch", "triton", "numpy"):
            self.offer(name, "99")
        self.offer("flash-attn", "9", "torch==99")
        # numactl is at hand, as after apt-get.
        (folder / "env/bin/numactl").symlink_to("/bin/true")
        for words in map(str.split, instructions("COPY")):
            for source in words[:-1]:
                target = self.place(words[-1]) / (source if words[-1].endswith("/") else "")
                target.parent.mkdir(parents=True, exist_ok=True)
                (shutil.copytree if (REPOSITORY / source).is_dir() else shutil.copy)(
                    REPOSITORY / source, target
                )

    def offer(self, name, version, *requires):
        """Offer a package without modules."""
        wheel(self.offered, described(name, version, metadata(name, version, requires)))

    def place(self, path):
        """Where a path of the image is."""
        return Path(path.replace(HOME, str(self.home)))

    def run(self, line, **variables):
        """Run a line of the Containerfile, or another, as the image's shell would."""
        env = {
            **environment(),
            **dict(argument.split("=", 1) for argument in instructions("ARG")),
            "PATH": f"{self.folder / 'env/bin'}:{os.environ['PATH']}",
            "PYTHONPATH": "",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.offered),
            "PIP_CONFIG_FILE": os.devnull,
            **variables,
        }
        return subprocess.run(
            ["sh", "-c", line.replace(HOME, str(self.home))], cwd=self.folder, env=env, capture_output=True,
            text=True, timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip

    def version(self, name):
        """Of an installed package."""
        return self.run(
            f"python3 -c 'import importlib.metadata as m; print(m.version(\"{name}\"))'"
        ).stdout.strip()


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    pytest.importorskip("hatchling", reason="needs hatchling, to build the project without an index")
    return Image(tmp_path_factory.mktemp("image"), "torch", "triton", "numpy")


@pytest.mark.refused
@pytest.mark.parametrize(
    ("extras", "message"),
    [
        ("flash2", "conflict"),
        (
            "gpus",
            "no extra 'gpus' in pyproject.toml: choose from dev, flash2, flash4, float8, gpu, tensorboard",
        ),
    ],
)
def test_an_extra_that_needs_another_torch_or_is_none_ends_the_build(fresh, extras, message):
    (line,) = [line for line in instructions("RUN") if "install.py" in line]
    process = fresh.run(line, EXTRAS=extras)
    assert process.returncode != 0
    assert message in process.stderr
    assert fresh.version("torch") == IMAGE["torch"]
    assert fresh.version("assay-studies") == ""


def test_the_containerfile_installs_the_project_and_keeps_the_torch_of_the_image(fresh):
    for line in instructions("RUN"):
        process = fresh.run(line)
        assert process.returncode == 0, f"{line}\n{process.stdout}\n{process.stderr}"
    versions = {name: fresh.version(name) for name in ("torch", "triton", "numpy")}
    assert versions == {**IMAGE, "numpy": installed("numpy")}
    places = fresh.run(
        "python3 -P -c 'import runner, model, analysis as a; print(runner.__file__, model.__file__, a.__file__)'"
    )
    assert places.stdout.split() == [
        f"{fresh.site}/{name}/__init__.py" for name in ("runner", "model", "analysis")
    ]
    assert "0.1.0" in fresh.run("runner --version").stdout
    listing = fresh.run(f"runner expand {REPOSITORY}/experiments/backends.yaml --profile alps")
    assert (listing.returncode, listing.stderr) == (0, "")


def test_on_a_login_node_without_torch_none_is_installed(tmp_path, study):
    """Runs can be launched from there, which needs none."""
    pytest.importorskip("hatchling", reason="needs hatchling, to build the project without an index")
    login = Image(tmp_path / "login")
    process = login.run(f"python3 {HOME}/containers/install.py")
    assert process.returncode == 0, process.stderr
    assert login.version("torch") == ""
    dry_run = login.run(f"runner launch {study()} --profile alps --dry-run")
    assert dry_run.returncode == 0, dry_run.stderr
    assert "srun" in dry_run.stdout
    checks = {
        check["what"]: check for check in json.loads(login.run("runner doctor --profile alps --json").stdout)
    }
    assert (checks["torch"]["works"], checks["torch"]["needed"]) == (False, False)
    assert "alps.yaml" in checks["to fill in"]["found"]


def test_the_definition_of_apptainer_does_what_the_containerfile_does():
    text = (CONTAINERS / "assay.def").read_text()
    sections = dict(re.findall(r"^%(\w+)\n((?:    .*\n)+)", text, re.MULTILINE))
    lines = {name: [line.strip() for line in body.splitlines()] for name, body in sections.items()}
    copies = [
        (source, words[-1] + source * words[-1].endswith("/"))
        for words in map(str.split, instructions("COPY"))
        for source in words[:-1]
    ]
    assert lines["arguments"] == instructions("ARG")
    assert [tuple(line.split()) for line in lines["files"]] == copies
    assert lines["post"] == [
        "set -e",
        *(line.replace("${EXTRAS}", "{{ EXTRAS }}") for line in instructions("RUN")),
    ]
    assert "From: {{ BASE }}\n" in text
    assert instructions("FROM") == ["${BASE}"]


# What CSCS documents: "PyTorch" for NVIDIA's images and "Alps Extended Images" for its own, on docs.cscs.ch in 2026-08.
NO_HOOK = {"com": {"hooks": {"cxi": {"enabled": "false"}}}}
HOOK = {"com": {"hooks": {"aws_ofi_nccl": {"enabled": "true", "variant": "cuda-dl"}}}}


@pytest.mark.parametrize(("file", "annotations"), [("edf-ngc.toml", HOOK), ("edf-alps.toml", NO_HOOK)])
def test_an_environment_of_alps_is_as_cscs_documents(file, annotations):
    edf = tomllib.loads((CONTAINERS / file).read_text())
    assert edf["image"].endswith(".sqsh")
    assert edf["mounts"] == ["/capstor", "/iopsstor"]
    assert edf["env"]["CUDA_CACHE_DISABLE"] == "1"
    assert edf["annotations"] == annotations
