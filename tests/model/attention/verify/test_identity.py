"""The key of a certificate covers everything that its result depends on."""

import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from model import attention
from model.attention.verify import certificate, identity
from model.attention.verify.identity import key_of
from model.record import backends
from model.training.certify import certify_case
from tests.model.attention.verify.planted import CASE

MODEL = Path(attention.__file__).parents[1]
SDPA = {"attention/_sdpa.py"}
HOPPER = ("__init__", "_backward", "_backward_wide", "_forward", "_tma", "passes", "schedule")
# What a backend computes with, beside its own file, the registry, the reasons and what tells AMD's GPUs.
OTHER_FILES = {
    "auto": SDPA,
    "cudnn": SDPA | {"attention/_frontend.py"},
    "custom": {
        "record/versions.py",
        "attention/kernels/__init__.py",
        "attention/kernels/dense.py",
        "attention/kernels/op.py",
        "attention/kernels/operators.py",
        *(f"attention/kernels/hopper/{name}.py" for name in HOPPER),
    },
    "efficient": SDPA,
    "flash": SDPA,
    "flash1": {
        "record/versions.py",
        "attention/kernels/__init__.py",
        "attention/kernels/flash1.py",
        "attention/kernels/operators.py",
        "attention/kernels/portable/tiles.py",
    },
    "math": SDPA,
    "portable": {
        "record/versions.py",
        "attention/kernels/operators.py",
        *(
            f"attention/kernels/portable/{name}.py"
            for name in ("__init__", "backward", "checks", "forward", "op", "tiles")
        ),
    },
}


def test_the_key_changes_with_whatever_the_result_depends_on() -> None:
    base = {"backend": "math", "code": "1", "case": CASE, "device_name": "CPU", "software": {"torch": "2.13"}}
    variations = [
        {"backend": "tiled"}, {"code": "2"}, {"case": replace(CASE, head_dim=64)}, {"case": None},
        {"device_name": "GPU"}, {"software": {"torch": "2.14"}},
    ]  # fmt: skip
    keys = {certificate.key(**(base | variation)) for variation in [{}, *variations]}
    assert len(keys) == len(variations) + 1


def test_a_certificate_is_found_under_the_key_that_a_run_asks_for() -> None:
    assert certify_case("math", CASE).key == key_of("math", "cpu", CASE) != key_of("tiled", "cpu", CASE)


@pytest.mark.fault
@pytest.mark.parametrize("variable", ["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "ONEDNN_DEFAULT_FPMATH_MODE"])
def test_a_certificate_does_not_hold_where_the_environment_makes_other_numbers(variable, monkeypatch) -> None:
    """A user's other roots, with other settings, look into the same cache."""
    keys = set()
    for value in (None, "1", "BF16"):
        identity.software.cache_clear()
        monkeypatch.setenv(variable, value) if value else monkeypatch.delenv(variable, raising=False)
        keys.add(key_of("math", "cpu", CASE))
    identity.software.cache_clear()
    assert len(keys) == 3


def test_the_records_need_no_torch() -> None:
    code = "import sys; import model.attention.verify.certificate, model.attention.verify.cases; print('torch' in sys.modules)"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == "False"


@pytest.mark.parametrize("name", backends.names())
def test_the_code_covers_every_file_that_a_backend_computes_with(name: str) -> None:
    files = {str(path.relative_to(MODEL)) for path in identity._files(f"model.attention.{name}")}
    own_files = {
        "__init__.py",
        *(f"record/{file}.py" for file in ("__init__", "backends", "case", "errors", "rocm", "traffic")),
        "attention/__init__.py",
        "attention/_parts.py",
        "attention/_reasons.py",
        f"attention/{name}.py",
    }
    assert files == own_files | OTHER_FILES.get(name, set())


def test_the_code_covers_what_the_rules_compute_with() -> None:
    files = {str(path.relative_to(MODEL)) for path in identity._files("model.training.certify")}
    training = ("llama", "optim", "loss", "checkpoint", "trainer")
    assert files >= {f"training/{name}.py" for name in training} | {"record/config.py", "record/sections.py"}


FOREIGN = {
    "partial": "from functools import partial\nfrom beside_partial import attend\nattend = partial(attend)",
    "object": "from beside_object import Attend\nattend = Attend()",
    "module": "import beside_module\nattend = beside_module.attend",
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_the_code_covers_modules_beside_a_foreign_backend(kind: str, tmp_path, registered) -> None:
    declaration = "from model.attention import Backend, Launches\nbackend = Backend('', lambda case: [], attend, Launches())\n"
    module_source = "def attend(q, k, v, causal):\n    return q\nclass Attend:\n    __call__ = attend\n"
    site = tmp_path / "site"
    site.mkdir()
    (site / f"fast_{kind}.py").write_text(f"{FOREIGN[kind]}\n{declaration}")
    (site / f"beside_{kind}.py").write_text(module_source)
    registered({kind: f"fast_{kind}:backend"}, site)
    digest = identity.code(kind)
    (site / f"beside_{kind}.py").write_text(f"{module_source}# changed\n")
    identity.code.cache_clear()
    assert identity.code(kind) != digest


def test_a_module_that_no_package_brought_is_known_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "built_by_hand_9.py").write_text("one = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    backend = replace(attention.load("math"), modules=("built_by_hand_9", "numpy", "nowhere_9"))
    monkeypatch.setattr(attention, "load", lambda _name: backend)
    software = identity.software.__wrapped__("math", "cpu")
    assert software["built_by_hand_9"].startswith("without a version, SHA-256 ")
    assert software["numpy"] == version("numpy")
    assert "nowhere_9" not in software
