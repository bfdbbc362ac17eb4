"""What needs which torch or triton is refused by the version that is installed, with the reason."""

import os
import runpy
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from model.attention import Case, load
from model.record import versions
from model.record.config import RunConfig
from model.record.errors import Unsupported
from runner.job import tasks
from tests.conftest import PATIENCE_SECONDS

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
(TORCH,) = [text for text in PROJECT["dependencies"] if Requirement(text).name == "torch"]
NVIDIAS = "2.11.0a0+5228986c39"


@pytest.fixture
def have(monkeypatch):
    """Pretends that these versions are installed, by package, and no others."""

    def pretend(**packages):
        def version(name):
            if name not in packages:
                raise PackageNotFoundError(name)
            return packages[name]

        monkeypatch.setattr(versions, "version", version)

    return pretend


@pytest.mark.parametrize(
    ("triton", "refused"),
    [("3.5.1", True), ("3.6.0", False), ("3.6.0a0+nv", False), ("3.8.9", False), ("3.9.0rc1", True)],
)
def test_releases_are_compared_and_their_pre_releases_and_builds_count_as_they_do(have, triton, refused):
    have(triton=triton)
    assert bool(versions.lacking("attention=custom")) is refused


def test_a_reason_names_what_is_needed_what_is_there_and_why(have):
    have(torch="2.8.0+cu128")
    (reason,) = versions.lacking("torch")
    purpose = "whose FlashAttention on a CPU takes no grouped heads"
    assert reason == f"needs torch 2.9 or later, not 2.8.0+cu128, {purpose}: install torch 2.9 or later"


def test_a_missing_package_a_nightly_name_and_an_odd_version_are_told_apart(have):
    have()
    assert versions.lacking("attention=portable") == []
    have(**{"pytorch-triton": "3.3.0+git96316ce5"})
    assert "not 3.3.0+git96316ce5" in versions.lacking("attention=portable")[0]
    have(triton="main")
    assert versions.lacking("attention=portable") == []


@pytest.mark.parametrize("name", ["custom", "flash1", "portable"])
def test_backends_of_triton_refuse_an_older_one_before_they_import_it(have, name):
    have(torch="2.9.1", triton="3.5.1")
    reasons = load(name).unsupported_reasons(Case("cuda", "bfloat16", 1, 128, 4, 4, 64))
    assert any("needs triton 3.6" in reason and "not 3.5.1" in reason for reason in reasons)


@pytest.mark.parametrize(
    ("key", "value"), [("optimizer", "adamw_one_pass"), ("loss", "linear_cross_entropy")]
)
def test_settings_that_need_a_newer_triton_end_a_run_before_torch_is_imported(have, monkeypatch, key, value):
    have(torch="2.9.1", triton="3.5.1")
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it is an error
    config = RunConfig.model_validate({"data": {"path": "a"}, "train": {key: value}})
    with pytest.raises(Unsupported, match=f"train.{key}={value} needs triton 3.6 or later, not 3.5.1"):
        tasks.prepare(config)


def test_float8_needs_the_torch_that_torchao_is_made_for(have):
    config = RunConfig.model_validate({"data": {"path": "a"}, "train": {"float8": "rowwise"}})
    have(torch="2.11.0a0+nv26.2")
    assert config.section.lacking() == {}
    have(torch="2.9.1")
    assert config.section.lacking()["train.float8"].startswith(
        "train.float8 needs torch 2.11 or later, not 2.9.1"
    )


def test_a_torch_that_is_too_old_ends_a_run_before_it_is_imported(have, monkeypatch):
    have(torch="2.8.0")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(Unsupported, match=r"needs torch 2.9 or later, not 2.8.0"):
        tasks.prepare(RunConfig.model_validate({"data": {"path": "a"}}))


def test_settings_of_other_tasks_need_nothing(have):
    have(torch="2.9.1", triton="3.5.1")
    assert RunConfig.model_validate({"task": "attention"}).section.lacking() == {}


def test_the_page_of_versions_is_current():
    """`make docs` writes it."""
    docs = Path(__file__).parents[3] / "docs"
    assert (docs / "versions.md").read_text() == runpy.run_path(str(docs / "versions.py"))["text"]()


def test_the_bound_of_the_package_is_that_of_the_table():
    oldest = versions.NEEDS["torch"].oldest
    bound = Requirement(TORCH).specifier
    assert bound.contains(f"{oldest}.0a0+nv", prereleases=True)
    assert not bound.contains(
        str(Version(oldest).major) + f".{Version(oldest).minor - 1}.9", prereleases=True
    )


@pytest.mark.parametrize("installed", [NVIDIAS, "2.9.0a0+50eac811a6", "2.9.1", "2.13.0+cpu"])
def test_an_install_keeps_the_torch_that_is_there(tmp_path, installed):
    assert "torch" not in would_install(tmp_path, installed)


def test_an_install_without_a_torch_takes_no_pre_release(tmp_path):
    assert "torch-2.99" in would_install(tmp_path, None)


def would_install(folder, installed):
    """What pip says that it would install for a package that needs torch as ours does; it asks no index."""
    wheel_folder, site = folder / "offered", folder / "site"
    wheel_folder.mkdir()
    site.mkdir()
    for name, version, requirement in (
        ("ours", "1", TORCH),
        ("torch", "2.99", None),
        ("torch", "3.0rc1", None),
    ):
        with zipfile.ZipFile(wheel_folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            for file, text in described(name, version, requirement).items():
                wheel.writestr(f"{name}-{version}.dist-info/{file}", text)
    if installed:
        info = site / f"torch-{installed}.dist-info"
        info.mkdir()
        for file, text in (described("torch", installed, None) | {"INSTALLER": "pip"}).items():
            (info / file).write_text(text)
    (folder / "pips").mkdir()
    (folder / "pips/pip").symlink_to(distribution("pip").locate_file("pip"))
    environment = {
        "PYTHONPATH": f"{site}:{folder / 'pips'}",
        "PIP_CONFIG_FILE": os.devnull,
    }  # nothing else is installed there
    command = [
        "-S",
        "-m",
        "pip",
        "--isolated",
        "install",
        "--dry-run",
        "--no-index",
        "--find-links",
        wheel_folder,
        "ours",
    ]
    completed = subprocess.run(
        [sys.executable, *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    (line,) = [line for line in completed.stdout.splitlines() if line.startswith("Would install")]
    return line


def described(name, version, requirement):
    """The metadata of a wheel."""
    requires = f"Requires-Dist: {requirement}\n" if requirement else ""
    return {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
