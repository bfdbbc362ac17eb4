"""What tells one AMD GPU from another, on a stand-in for PyTorch's ROCm build."""

import pytest
import torch

from model.measure import machine
from model.measure.flops import peak
from model.record import rocm
from tests.amd import stand_in


def test_without_rocm_there_is_no_amd_gpu(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert (rocm.version(), rocm.architecture()) == (None, None)


def test_the_architecture_comes_without_its_features(monkeypatch) -> None:
    stand_in(monkeypatch, "gfx942")
    assert rocm.architecture() == "gfx942"


@pytest.mark.parametrize(
    ("text", "uuid"),
    [
        ("36346236-3430-3832-3731-656231353362", "GPU-64b6408271eb153b"),  # rocminfo's name of it
        ("58580000-0000-0000-0000-000000000000", "PCI-0000:c1:00"),  # the text XX: all GPUs have it
        ("00000000-0000-0000-0000-000000000000", "PCI-0000:c1:00"),
        ("60d1fa00-1111-2222-3333-444444444444", "60d1fa00-1111-2222-3333-444444444444"),
    ],
)
def test_a_gpu_has_an_id_of_its_own(monkeypatch, text, uuid) -> None:
    stand_in(monkeypatch, uuid=text)
    assert machine.device("cuda")[1] == uuid


@pytest.mark.parametrize(
    ("architecture", "changes", "name", "tflops"),
    [
        ("gfx90a", {}, "AMD Instinct MI250X", 191.5),
        ("gfx942", {}, "AMD Instinct MI300X", 1307.4),
        ("gfx942", {"multi_processor_count": 38}, "AMD Instinct MI300X, 38 of 304 CUs", None),
        ("gfx90a", {"name": ""}, "AMD gfx90a", None),
        ("gfx1100", {}, "AMD Radeon RX 7900 XTX", None),
    ],
)
def test_a_part_of_a_gpu_or_one_without_a_name_has_no_peak(
    monkeypatch, architecture, changes, name, tflops
) -> None:
    stand_in(monkeypatch, architecture, **changes)
    assert machine.device("cuda")[0] == name
    device_peak = peak(name, "bfloat16")
    assert (device_peak and device_peak.flops / 1e12) == (tflops and pytest.approx(tflops))


def test_the_software_of_a_run_is_rocms(monkeypatch) -> None:
    stand_in(monkeypatch)
    software = machine.device("cuda")[2]
    assert software["hip"] == "6.4.43484-123eb5128"
    assert not {"cuda", "cudnn"} & {*software}
