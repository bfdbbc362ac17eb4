"""What `runner doctor` tells the owner of an old GPU."""

from types import SimpleNamespace

import pytest
import torch

from model import attention
from model.attention import _reasons, _sdpa
from runner.commands import doctor


@pytest.fixture
def t4(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: SimpleNamespace(uuid="none"))
    monkeypatch.setattr(_reasons, "_cuda_is_there", lambda case: [])
    monkeypatch.setattr(_sdpa, "refusals", lambda *a, **k: [])  # PyTorch would ask the GPU


def test_a_t4_is_told_to_train_in_float32_and_what_runs_in_it(t4):
    found = {check.what: check for check in [*doctor._torch(), *doctor._backends()]}
    assert "use --set train.dtype=float32" in found["gpu"].found
    assert found["attention math"].works
    assert found["attention efficient"].works
    assert "Ampere" in found["attention flash"].found
    assert not any("dtype=float16" in check.found for check in found.values())


def test_no_backend_tells_anybody_to_train_in_float16(t4):
    for name in attention.names():
        for dtype in ("bfloat16", "float32"):
            case = attention.Case("cuda", dtype, 1, 4096, 32, 8, 128)
            assert "dtype=float16" not in "; ".join(attention.load(name).unsupported_reasons(case))


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ((3.0, 1980, ""), "runs record energy, clocks, and what holds them back"),
        ((None, 1980, ""), "runs cannot record energy: "),
        ((None, None, None), "runs cannot record energy, clocks, what holds them back: "),
    ],
)
def test_what_a_gpu_does_not_tell_of_itself_is_said(monkeypatch, told, says):
    for name, value in zip(("joules", "sm_mhz", "throttle_reasons"), told, strict=True):
        monkeypatch.setattr(doctor.Gpu, name, lambda _gpu, value=value: value)
    found = doctor._sensors("a uuid that no driver knows")
    assert found.found.startswith(says)
    assert found.works == (None not in told)
