"""What nvidia-smi says becomes clocks; what it does not say stays unknown."""

import stat

import pytest

from model.record.records import Clocks
from model.record.speed import LoadClocks
from runner.job.clocks import clocks, clocks_now, parse

LINE = "700.00, 1980, 3201, 5823974, 0, 1000000, 500000\n"  # as an H200 said, but for being slowed


def test_a_line_of_nvidia_smi_is_read_in_watts_megahertz_and_seconds():
    reading = parse(LINE)
    assert reading == Clocks(
        power_limit_watts=700, sm_mhz=1980, memory_mhz=3201, power_capped_seconds=5.823974, slowed_seconds=1.5
    )


def test_what_the_driver_does_not_know_is_none():
    reading = parse("700.00, [N/A], 3201, [Not Supported], 0, nan, 0\n")
    assert reading == Clocks(
        power_limit_watts=700, sm_mhz=None, memory_mhz=3201, power_capped_seconds=None, slowed_seconds=None
    )


@pytest.mark.refused
@pytest.mark.parametrize("output", ["", "No devices were found\n", LINE * 2, "1, 2, 3"])
def test_anything_but_one_such_line_is_not_taken_for_clocks(output):
    assert parse(output) is None


def test_the_gpu_is_asked_for_by_its_id_and_a_cpu_not_at_all(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\n[ "$1" = --id=GPU-a1 ] && echo "{LINE.strip()}"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert clocks(None) is None
    assert clocks("a1") == clocks("GPU-a1") == parse(LINE)
    assert clocks("b2") is None
    monkeypatch.setenv("PATH", "")
    assert clocks("a1") is None


@pytest.mark.parametrize(
    ("output", "reading"),
    [
        ("1755, 3201, 700.00", LoadClocks(graphics_mhz=1755, memory_mhz=3201, power_limit_watts=700)),
        ("[N/A], 3201, 700.00", LoadClocks(graphics_mhz=None, memory_mhz=3201, power_limit_watts=700)),
        ("No devices were found", None),
    ],
)
def test_the_clocks_of_this_moment_are_those_that_nvidia_smi_says(tmp_path, monkeypatch, output, reading):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{output}'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert clocks_now("a1") == reading
    assert clocks_now(None) is None
