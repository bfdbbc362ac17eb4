"""Writes docs/versions.md: what each version of torch does on a CPU, from the results in docs/versions.json.

    python docs/versions.py                  writes the page
    python docs/versions.py 2.9.1 2.10.0     first measures these, in environments of their own

Measuring needs the environment of `make`, and for each version some 8 GB of disk until it is done: pip brings
CUDA's libraries. It runs the tests of each row with that torch and its Triton, and all other packages as
here. Neither is for CI.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))

from model.record.versions import NEEDS  # noqa: E402

RESULTS = Path(__file__).with_suffix(".json")
VERSIONS = ("2.7", "2.8", "2.9", "2.10", "2.11", "2.12", "2.13", "2.14")
ROWS = {
    "`auto`, `flash`, `math` and `tiled`": ["attention/test_numbers.py"],
    "parts of sequences": ["attention/test_offset.py"],
    "training": ["test_trainer.py", "test_llama.py", "test_optim.py", "test_keeper.py"],
    "inference": ["inference"],
    "torch.compile": ["verify/test_compiled.py"],
    "several processes": ["parallel/test_equality.py", "parallel/test_context.py"],
    "checkpoints of several processes": ["parallel/test_shards.py", "parallel/test_resume.py"],
    "float8, emulated, by torchao 0.18": ["test_float8.py"],
    "`portable`, in Triton's interpreter": ["kernels/test_portable.py"],
    "Gluon kernels, compiled for Hopper": ["kernels/test_hopper.py"],
}
START = """\
# Versions of torch

Assay needs {torch}. An install keeps the torch that is there, also a pre-release such as NVIDIA's
2.11.0a0+nv26.2, which counts as 2.11. `runner doctor` shows what the installed versions lack.

## What needs which version

A run that needs another version ends as `unsupported` with the reason. If its processes use the Python that
launches, such a setting is an error at its line, and nothing starts. `model/record/versions.py` has the same
table.

| what | needs | since an installed one may be one |
|---|---|---|
{needs}

## What each version does on a CPU

Each cell is the result of the tests of its row with the newest release of that version, the Triton that it
brings, and Python 3.11. No version was measured on a GPU for this page.

| |{versions}|
|---|{line}|
{rows}

{notes}

`python docs/versions.py VERSION...` measures; it downloads several GB for each version.
"""


def text() -> str:
    """The page."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    needs = [
        f"| `{name}` | {need.releases} | {'; '.join(filter(None, (need.why, need.why_newest)))} |"
        for name, need in NEEDS.items()
    ]
    cells = {row: [results["cells"].get(v, {}).get(row, "not measured") for v in VERSIONS] for row in ROWS}
    return START.format(
        torch=NEEDS["torch"].releases,
        needs="\n".join(needs),
        versions="|".join(f" {v} " for v in VERSIONS),
        line="|".join(["---"] * len(VERSIONS)),
        rows="\n".join(f"| {row} | {' | '.join(said)} |" for row, said in cells.items()),
        notes="\n".join(f"- {v}: {note}" for v, note in results["notes"].items()),
    )


def measure(version: str) -> dict[str, str]:
    """The cells of a version's column."""
    with TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = Path(folder) / "bin/python"
        install = [python, "-m", "pip", "install", "--no-cache-dir", "--no-compile", f"torch=={version}"]
        subprocess.run(install, check=True)
        (site,) = Path(folder).glob("lib/python*/site-packages")
        others = sysconfig.get_path("purelib")
        (site / "zz_others.pth").write_text(f"import site; site.addsitedir({others!r})\n")  # after its own
        return {row: _tested(python, files, Path(folder) / "results.xml") for row, files in ROWS.items()}


def _tested(python: Path, files: list[str], results: Path) -> str:
    """Whether a row's tests pass, in words."""
    paths = [f"tests/model/{file}" for file in files]
    command = [
        python,
        "-m",
        "pytest",
        "-n",
        "2",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junit-xml={results}",
        *paths,
    ]
    subprocess.run(command, cwd=HERE, check=False)
    cases = list(ElementTree.parse(results).iter("testcase"))  # noqa: S314  pytest wrote it
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    skipped = sum(case.find("skipped") is not None for case in cases)
    return told(len(cases) - failed - skipped, failed)


def told(passed: int, failed: int) -> str:
    """A cell."""
    if failed:
        return f"{failed} of {passed + failed} fail"
    return f"yes ({passed})" if passed else "not measured"


if __name__ == "__main__":
    kept = json.loads(RESULTS.read_text(encoding="utf-8"))
    for version in sys.argv[1:]:
        kept["cells"][".".join(version.split(".")[:2])] = measure(version)
        RESULTS.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    Path(__file__).with_suffix(".md").write_text(text(), encoding="utf-8")
