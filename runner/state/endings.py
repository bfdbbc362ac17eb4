"""Maps how a process ended (an exception in the job, a signal, an exit code) to an outcome."""

from __future__ import annotations

import re
import signal
import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import ByteSize, TypeAdapter

from model.measure import hostmemory
from model.measure.hostmemory import Limit
from model.measure.memory import needed
from model.record.config import RunConfig
from model.record.errors import AssayError, Diverged, Unsupported, out_of_host_memory
from model.record.files import tail
from model.record.outcome import Outcome
from model.record.units import size

UNWRITTEN = 74  # exit code of an attempt that could not write its result; EX_IOERR in sysexits.h


class Terminated(BaseException):
    """SIGTERM, raised as an exception in the job's main thread so that the job can record its outcome."""


@dataclass(frozen=True)
class Ending:
    """An outcome, its reason, and the bytes requested if memory ran out.

    Attributes:
        failed_nodes: those whose failure ended it, as far as known.
        nodes: of the job, in Slurm's form such as `n[1-2]`; empty if Slurm did not say how it ended.
    """

    outcome: Outcome
    reason: str | None = None
    requested_bytes: int | None = None
    failed_nodes: tuple[str, ...] = ()
    nodes: str = field(default="", compare=False)


# Messages of torch's CPU allocator and the C++ runtime, which raise plain RuntimeErrors.
_HOST_MEMORY = re.compile(r"DefaultCPUAllocator|not enough memory|std::bad_alloc|Cannot allocate memory")
# Python's and the C++ runtime's, of a thread that the system did not start, whatever the cause.
_NO_THREAD = re.compile(r"can't start new thread|Resource temporarily unavailable")
# Of CUDA, HIP and their libraries, which take memory of the GPU beside torch's allocator, and of the host.
_CUDA_MEMORY = re.compile(
    r"[^\n]*(?:(?:CUDA|HIP) (?:driver )?error: out of memory|\[CUDA\]: out of memory"
    r"|\[HIP\]: +Code: \d+, Mess?sage: out of memory|(?:CU|HIP)BLAS_STATUS_ALLOC_FAILED"
    r"|(?:Cuda|HIP) failure (?:2 )?'out of memory')[^\n]*"
)
# What the C++ runtime (GNU's, LLVM's) prints before SIGABRT, where nothing caught its error, or that of
# torch's CPU allocator. A GPU's libraries have a bad_alloc of their own.
_TERMINATED = re.compile(r"terminate called|libc\+\+abi: terminating")
_NO_MEMORY = re.compile(
    r"[^\n]*(?:'|of type )(?:std::bad_alloc|c10::Error[^\n]*\s[^\n]*DefaultCPUAllocator: can't allocate)"
)
ABORTED = (-signal.SIGABRT, 128 + signal.SIGABRT)  # of a process, or of a shell that ran it
_LAST_BYTES = 16384  # of the output, which a traceback may follow
# The size in bytes does not even fit into 64 bits.
_ANY_MEMORY = re.compile(r"Storage size calculation overflowed|integer multiplication overflow")
_BYTES = TypeAdapter(ByteSize)
_REQUESTED = re.compile(r"(?i:tried to allocate) ([\d.]+) (bytes|[KMGT]iB)")


def ending_of_exception(error: BaseException, device: str = "cpu", limit: Limit | None = None) -> Ending:
    """The ending of a job that raised this exception.

    Args:
        device: of its run, "cuda" or "cpu"; needed for tensors that are larger than any memory.
        limit: of the process's memory, if it has one. A thread that has no room for its stack raises
            nothing about memory, and CUDA does not say whose memory has run out.
    """
    text = str(error).strip()
    first = text.splitlines()[0] if text else type(error).__name__
    if isinstance(error, Unsupported):
        return Ending(Outcome.UNSUPPORTED, text)
    if isinstance(error, Diverged):
        return Ending(Outcome.DIVERGED, text)
    if isinstance(error, Terminated | KeyboardInterrupt):
        return Ending(
            Outcome.CANCELLED,
            "received " + ("SIGTERM" if isinstance(error, Terminated) else "SIGINT"),
        )
    if type(error).__name__ == "OutOfMemoryError":  # torch's; this file does not import torch
        return Ending(Outcome.OOM_GPU, text.partition(" If ")[0], _requested(text))
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _HOST_MEMORY.search(text)):
        return Ending(Outcome.OOM_HOST, _host_memory_reason(text, limit), _requested(text))
    if out_of_host_memory(error):
        return Ending(Outcome.OOM_HOST, f"out of host memory: {first}{_memory_in_use(limit)}")
    if isinstance(error, RuntimeError) and (of_cuda := _CUDA_MEMORY.search(text)):
        words = of_cuda[0].strip()
        if limit and (short := limit.short()):
            return Ending(Outcome.OOM_HOST, f"out of host memory: {short}: {words}")
        return Ending(Outcome.OOM_GPU, words)
    if isinstance(error, RuntimeError) and _NO_THREAD.search(text) and limit and (short := limit.short()):
        return Ending(Outcome.OOM_HOST, f"out of host memory: {short}: {first}")
    if isinstance(error, RuntimeError) and _ANY_MEMORY.search(text):
        return Ending(oom_outcome(device), f"a tensor is larger than any memory: {first}")
    if isinstance(error, AssayError):
        return Ending(Outcome.FAILED, text)
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "no traceback"
    return Ending(Outcome.FAILED, f"{type(error).__name__}: {first} ({where})")


def _requested(text: str) -> int | None:
    match = _REQUESTED.search(text)
    return int(_BYTES.validate_python(f"{match[1]}{match[2].replace('bytes', 'B')}")) if match else None


def _host_memory_reason(text: str, limit: Limit | None = None) -> str:
    requested = _requested(text)
    reason = f"out of host memory: requested {size(requested)}" if requested else "out of host memory"
    return f"{reason}{_memory_in_use(limit)}"


def _memory_in_use(limit: Limit | None) -> str:
    """The memory in use when an allocation failed, and the limits that there are, as the end of a reason."""
    return "".join(f"; {text}" for text in (limit and limit.state(), hostmemory.address_space()) if text)


def oom_outcome(device: str) -> Outcome:
    """The outcome of a run that needs more memory than its device has."""
    return Outcome.OOM_GPU if device == "cuda" else Outcome.OOM_HOST


def with_memory_need(ending: Ending, config: RunConfig) -> Ending:
    """The ending; for lack of memory, with what the run needs in all, as the last request may be small."""
    if ending.outcome is not oom_outcome(config.device) or (need := needed(config)) is None:
        return ending
    process = "each process" if config.processes > 1 else "it"
    needs = f"; by its configuration {process} needs about {size(need)} in all"
    return replace(ending, reason=(ending.reason or "out of memory").rstrip(".") + needs)


def ending_of_abort(output: Path) -> Ending | None:
    """The ending of a process without a result whose output says that it aborted for lack of memory."""
    try:
        printed = tail(output, _LAST_BYTES).decode(errors="replace")
    except OSError:
        return None
    starts = [match.start() for match in _TERMINATED.finditer(printed)]
    if not starts or not _NO_MEMORY.match(text := printed[starts[-1] :]):
        return None
    return Ending(Outcome.OOM_HOST, f"{_host_memory_reason(text)}, and aborted", _requested(text))


def ending_of_exit(code: int, oom_killed: bool, memory: str | None = None) -> Ending:
    """The ending of a local process that left no result.

    Args:
        code: as subprocess reports it, negative for a signal.
        oom_killed: whether the kernel's OOM killer was active while the process ran, as `oom_kills` counts.
        memory: what was in use, and whose limit that is, if the kernel ended a process for that limit.
    """
    if code == -signal.SIGKILL and memory:
        return Ending(Outcome.OOM_HOST, f"out of host memory: {memory}; killed by the kernel")
    if code == -signal.SIGKILL and oom_killed:
        return Ending(Outcome.OOM_HOST, "killed by the kernel's OOM killer: the machine ran out of memory")
    if code == UNWRITTEN:
        return Ending(Outcome.FAILED, "could not write its result: is its disk full?")
    if code < 0:
        return Ending(Outcome.FAILED, f"killed by {signal.Signals(-code).name}")
    return Ending(Outcome.FAILED, f"exited with code {code} without a result")
