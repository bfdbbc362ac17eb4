"""What NVML says becomes joules, megahertz and reasons; what it does not say stays unknown."""

import sys
from types import SimpleNamespace

import pytest

from model.measure.nvml import Gpu


class Refused(Exception):
    pass


def refuse(*arguments):
    raise Refused


class Handle:
    """What a handle answers to each question, as pynvml asks it."""

    def __init__(self, uuid):
        self.uuid = uuid


def library(**changes):
    """A stand-in for pynvml."""
    return SimpleNamespace(**{
        "NVMLError": Refused,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: Handle(uuid) if uuid == "GPU-a1" else refuse(),
        "nvmlDeviceGetTotalEnergyConsumption": lambda handle: 1500,
        "nvmlDeviceGetClockInfo": lambda handle, kind: {1: 1980}[kind],
        "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: 0x1 | 0x4 | 0x40,
    } | changes)  # fmt: skip


def readings(gpu):
    return gpu.joules(), gpu.sm_mhz(), gpu.throttle_reasons()


@pytest.mark.parametrize("uuid", ["a1", "GPU-a1"])
def test_a_gpu_says_its_energy_its_clock_and_what_holds_it_back(monkeypatch, uuid):
    monkeypatch.setitem(sys.modules, "pynvml", library())
    assert readings(Gpu(uuid)) == (1.5, 1980, "sw_power_cap, hw_thermal_slowdown")


def test_a_gpu_that_nothing_holds_back_says_so_also_where_it_is_idle(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", library(nvmlDeviceGetCurrentClocksEventReasons=lambda _: 0x1))
    assert Gpu("a1").throttle_reasons() == ""


@pytest.mark.fault
@pytest.mark.parametrize("missing", [None, library(nvmlInit=refuse)])
def test_without_the_library_or_a_driver_nothing_is_known(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, "pynvml", missing)
    assert readings(Gpu("a1")) == (None, None, None)


@pytest.mark.fault
def test_what_one_question_is_not_answered_leaves_the_others(monkeypatch):
    older_library = library(nvmlDeviceGetTotalEnergyConsumption=refuse)
    del older_library.nvmlDeviceGetCurrentClocksEventReasons
    monkeypatch.setitem(sys.modules, "pynvml", older_library)
    assert readings(Gpu("a1")) == (None, 1980, None)


def test_a_cpu_and_a_gpu_that_nvml_does_not_know_have_no_sensors(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", library())
    assert readings(Gpu(None)) == readings(Gpu("b2")) == (None, None, None)
