"""What this node's device can do, measured once per study: `python -m runner.job.ceilings PARENT_PID`.

It measures in a separate process, which cannot affect the run's memory, random numbers or GPU context, and
which can be ended if it takes too long. The process reads a run's configuration on standard input and writes
what it measured. Each device of a node is measured separately, and so are other software and other shapes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from model.measure import floor, hostmemory
from model.record.config import RunConfig
from model.record.errors import AssayError
from model.record.files import Unreadable, read, write
from model.record.records import Manifest, now
from model.record.speed import CEILINGS_FOLDER, Ceilings, FloorPart, NodeRecord, ceilings_key
from model.record.units import say, size
from runner.job.child import QuickExit, answer_stream, die_with
from runner.job.clocks import clocks_now
from runner.job.turns import turn

_MEMORY = 2**29  # bytes of host memory that measuring a CPU takes at most; 248 MiB were seen
LIMIT_SECONDS = 300.0  # measuring takes a few, and importing torch as long as a busy disk or machine needs


class Unmeasured(AssayError):
    """The ceilings could not be measured; the text says why."""


@dataclass(frozen=True)
class KnownCeilings:
    """What an attempt knows about its device's ceilings; fields of its manifest.

    Attributes:
        ceilings: key of the record.
        no_ceilings: why there is no record, or why no floor is stated from it.
        floor: of a step of the run, and of a decoded token.
    """

    ceilings: str | None = None
    no_ceilings: str | None = None
    floor: list[FloorPart] | None = None


def known_ceilings(
    config: RunConfig, manifest: Manifest, study: Path, options: Sequence[str], memory: int | None = None
) -> KnownCeilings:
    """The stored ceilings of this device; measures them if there are none. A run can do without them.

    Args:
        manifest: with what torch knows about the device.
        study: its folder.
        options: Python options that make a process import the run's code.
        memory: limit in bytes on what the run's processes have in use, the one that measures among them.
    """
    try:
        if config.train.float8 != "none" or config.inference.in_8_bits:
            raise Unmeasured("the rates of products in 8 bits are not measured")
        folder, key = study / CEILINGS_FOLDER, key_of(config, manifest)
        if (record := _stored(folder, key)) is None:
            if config.device == "cpu" and memory and (free := memory - hostmemory.in_use()) < _MEMORY:
                taken = f"that takes {size(_MEMORY)} of the run's memory"
                raise Unmeasured(f"{taken}, of which {size(free)} are free")
            # Runs that need the same record take turns: only on a CPU, since a run has its GPU alone.
            with turn(folder / f"{key}.lock", LIMIT_SECONDS, lambda: None) as own_turn:
                if (record := _stored(folder, key)) is None:
                    started = time.monotonic()
                    measured = measure(config, options)
                    record = NodeRecord(
                        key=key,
                        node=str(manifest.host),
                        device_name=str(manifest.device_name),
                        gpu_uuid=manifest.gpu_uuid,
                        dtype=config.section.dtype,
                        software=manifest.software,
                        measured=measured,
                        seconds=time.monotonic() - started,
                        measured_at=now(),
                    )
                    write(folder / f"{key}.json", record)
                if own_turn:
                    own_turn.done(made=True)
    except (Unmeasured, OSError) as error:
        say(f"the ceilings of this node are not known: {error}")
        return KnownCeilings(no_ceilings=str(error))
    if unsure := record.measured.unsure:
        sys.stderr.write(f"the ceilings of this node are uncertain, so no floor is stated: {unsure}\n")
        return KnownCeilings(record.key, unsure)
    return KnownCeilings(record.key, None, floor.floor(config, record.measured))


def key_of(config: RunConfig, manifest: Manifest) -> str:
    """The key of the record that an attempt needs."""
    device = str(manifest.device_name), manifest.gpu_uuid
    shapes = floor.shapes(config.model, config.parallel.tensor)
    tokens = floor.tokens_at_once(config)
    return ceilings_key(str(manifest.host), device, manifest.software, config.section.dtype, shapes, tokens)


def _stored(folder: Path, key: str) -> NodeRecord | None:
    try:
        record = read(folder / f"{key}.json", NodeRecord)
    except Unreadable:  # missing or torn: measure again
        return None
    return record if record.key == key else None


def measure(config: RunConfig, options: Sequence[str]) -> Ceilings:
    """Measure in a separate process. Raises Unmeasured."""
    command = [sys.executable, *options, "-m", "runner.job.ceilings", str(os.getpid())]
    try:
        ended = subprocess.run(
            command, input=config.model_dump_json(), capture_output=True, text=True, timeout=LIMIT_SECONDS,
            check=False,
        )  # fmt: skip
        if ended.returncode:
            lines = ended.stderr.strip().splitlines()  # the last one of a traceback names the error
            error = f": {lines[-1]}" if lines else ""
            raise Unmeasured(f"measuring ended with code {ended.returncode}{error}")
        return Ceilings.model_validate_json(ended.stdout)
    except subprocess.TimeoutExpired as error:
        raise Unmeasured(f"measuring did not finish within {LIMIT_SECONDS:g} s") from error
    except ValidationError as error:
        raise Unmeasured("the measuring process gave no answer") from error


def main() -> None:
    """Measure, for the parent process; end with it."""
    die_with(int(sys.argv[1]))
    leaving = QuickExit()
    config = RunConfig.model_validate_json(sys.stdin.read())
    answers = answer_stream()
    from model.measure import ceilings, machine

    uuid = machine.device(config.device)[1]
    measured = ceilings.measure(config, lambda: clocks_now(uuid))
    print(measured.model_dump_json(), file=answers, flush=True)
    leaving.done = True


if __name__ == "__main__":
    main()
