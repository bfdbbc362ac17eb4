"""Everything that ends has the outcome that is true, and an unknown end is never success."""

import errno
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from model.attention.verify.call import is_out_of_memory
from model.measure import hostmemory
from model.record import errors
from model.record.errors import Diverged, Unsupported
from model.record.outcome import Outcome
from runner.state.endings import (
    UNWRITTEN,
    Ending,
    Terminated,
    ending_of_abort,
    ending_of_exception,
    ending_of_exit,
)
from tests.conftest import REPOSITORY


class OutOfMemoryError(RuntimeError):
    """Named like torch's."""


@pytest.mark.parametrize(
    ("error", "outcome", "requested"),
    [
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 16.00 GiB. GPU 0 has 79 GiB. If reserved"), "oom_gpu", 16 * 2**30),
        (OutOfMemoryError("HIP out of memory. Tried to allocate 16.00 GiB. GPU 0 has 63 GiB. If reserved"), "oom_gpu", 16 * 2**30),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 4294967296 bytes. Error code 12"), "oom_host", 2**32),
        (RuntimeError("std::bad_alloc"), "oom_host", None),
        (MemoryError(), "oom_host", None),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "oom_host", None),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "oom_host", None),
        (RuntimeError("Error in dlopen: libx.so: failed to map segment from shared object"), "oom_host", None),
        (Unsupported(["no GPU", "no bf16"]), "unsupported", None),
        (Diverged("loss nan at step 3"), "diverged", None),
        (Terminated(), "cancelled", None),
        (KeyboardInterrupt(), "cancelled", None),
        (ValueError("x"), "failed", None),
        (RuntimeError("CUDA error: an illegal memory access"), "failed", None),
        (RuntimeError("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'"), "oom_gpu", None),
        (SystemExit(0), "failed", None),
    ],
)  # fmt: skip
def test_an_exception_has_its_outcome(error, outcome, requested):
    ending = ending_of_exception(error)
    assert (ending.outcome, ending.requested_bytes) == (Outcome(outcome), requested)
    assert ending.reason


def test_a_library_that_does_not_fit_into_memory_is_named(monkeypatch):
    error = ImportError("libx.so: failed to map segment from shared object", path=__file__)
    reason = "out of host memory: libx.so: failed to map segment from shared object"
    assert ending_of_exception(error).reason == reason
    no_programs = SimpleNamespace(f_flag=os.ST_NOEXEC)
    monkeypatch.setattr(errors.os, "statvfs", lambda file: no_programs if file.samefile(__file__) else None)
    assert ending_of_exception(error).outcome is Outcome.FAILED


@pytest.mark.fault
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("shape", [(2**31, 2**31), (2**40, 2**40)], ids=str)
def test_a_tensor_whose_size_no_number_holds_is_more_than_the_devices_memory(device, shape):
    with pytest.raises(RuntimeError) as error:
        torch.empty(shape)
    ending = ending_of_exception(error.value, device)
    assert ending.outcome == ("oom_gpu" if device == "cuda" else "oom_host")
    assert ending.reason == f"a tensor is larger than any memory: {error.value}"
    assert is_out_of_memory(error.value)


def test_an_allocation_that_fails_is_said_beside_what_was_in_use_and_whose_limit_that_is(monkeypatch):
    monkeypatch.setattr(hostmemory, "_in_use", lambda status: 2**29)
    limit = hostmemory.Limit(3 * 2**30, "`memory` of profile local")
    monkeypatch.setattr(hostmemory.resource, "getrlimit", lambda kind: (8 * 2**30, -1))
    ending = ending_of_exception(RuntimeError(TORCH), limit=limit)
    assert ending.reason == (
        "out of host memory: requested 4.0 GiB; 512.0 MiB of 3.0 GiB in use (`memory` of profile local); "
        "`ulimit -v` allows 8.0 GiB to be mapped"
    )


def test_a_failure_says_what_and_where():
    try:
        raise ValueError("bad shape")
    except ValueError as error:
        reason = ending_of_exception(error).reason
    assert reason.startswith("ValueError: bad shape")
    assert __file__ in reason


def test_a_silent_exit_is_a_failure_that_names_the_signal():
    assert ending_of_exit(-signal.SIGKILL, oom_killed=False).reason == "killed by SIGKILL"
    assert ending_of_exit(-signal.SIGKILL, oom_killed=True).outcome is Outcome.OOM_HOST
    memory = "3.0 GiB of 3.0 GiB in use (`memory` of profile p)"
    assert ending_of_exit(-signal.SIGKILL, oom_killed=False, memory=memory) == Ending(
        Outcome.OOM_HOST, f"out of host memory: {memory}; killed by the kernel"
    )
    assert ending_of_exit(-signal.SIGSEGV, oom_killed=True).outcome is Outcome.FAILED
    assert ending_of_exit(0, oom_killed=False).outcome is Outcome.FAILED
    assert (
        ending_of_exit(UNWRITTEN, oom_killed=False).reason == "could not write its result: is its disk full?"
    )


NOT_CAUGHT = (
    "terminate called after throwing an instance of '{}'\n  what():  {}\nFatal Python error: Aborted\n"
)
BAD_ALLOC = NOT_CAUGHT.format("std::bad_alloc", "std::bad_alloc")
TORCH = "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 4294967296 bytes. Error code 12"


@pytest.mark.fault
@pytest.mark.parametrize(
    ("stderr", "reason", "requested"),
    [
        (BAD_ALLOC, "out of host memory, and aborted", None),
        (NOT_CAUGHT.format("c10::Error", TORCH), "out of host memory: requested 4.0 GiB, and aborted", 2**32),
        ("libc++abi: terminating due to uncaught exception of type std::bad_alloc: std::bad_alloc", "out of host memory, and aborted", None),
        (f"RuntimeError: {TORCH}, which was caught\n{NOT_CAUGHT.format('std::logic_error', 'no')}", None, None),
        (f"pool: terminating idle worker\n{BAD_ALLOC}{NOT_CAUGHT.format('std::runtime_error', 'no')}", None, None),
        (NOT_CAUGHT.format("thrust::system::detail::bad_alloc", "std::bad_alloc: out of memory"), None, None),
        ("std::bad_alloc\n", None, None),
        (None, None, None),
    ],
)  # fmt: skip
def test_a_process_that_says_that_it_aborts_for_lack_of_memory_is_out_of_it(
    tmp_path, stderr, reason, requested
):
    if stderr is not None:
        (tmp_path / "stderr.log").write_text(stderr)
    ending = ending_of_abort(tmp_path / "stderr.log")
    assert ending == (Ending(Outcome.OOM_HOST, reason, requested) if reason else None)


THREADS = """
import resource, threading
from model.measure import hostmemory
from runner.state.endings import ending_of_exception

limit = hostmemory.Limit(2**30, "`memory` of profile p")
limit.hold()
mapped = dict(hostmemory._numbers(hostmemory.PROC / "self/status"))["VmData:"] * 1024
resource.setrlimit(resource.RLIMIT_DATA, (mapped + 40 * 2**20, resource.RLIM_INFINITY))
done = threading.Event()
try:
    while True:
        threading.Thread(target=done.wait, daemon=True).start()
except RuntimeError as error:
    tight = ending_of_exception(error, limit=limit)
    limit.release()
    for ending in (tight, ending_of_exception(error, limit=limit), ending_of_exception(error)):
        print(ending.outcome.value)
done.set()
"""


@pytest.mark.fault
def test_a_thread_that_has_no_room_for_its_stack_is_out_of_memory() -> None:
    """Where there is room, some other limit does not let it start: on the number of processes, say."""
    stdout = subprocess.run(
        [sys.executable, "-c", THREADS], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    assert stdout.split() == ["oom_host", "failed", "failed"]


OF_CUDA = [
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "Triton Error [CUDA]: out of memory",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "ncclUnhandledCudaError: Call to CUDA function failed. Last error: Cuda failure 2 'out of memory'",
    "HIP error: out of memory",
    "Triton Error [HIP]:  Code: 2, Messsage: out of memory",
    "CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
    "ncclUnhandledCudaError: Call to CUDA function failed. Last error: HIP failure 'out of memory'",
]


@pytest.mark.fault
@pytest.mark.parametrize("message", OF_CUDA)
def test_cuda_that_gets_no_memory_ran_out_of_the_hosts_if_that_was_short(monkeypatch, message):
    """As on an H100 under a limit of 3 GiB: CUDA does not say whose memory it was."""
    error = RuntimeError(f"backend='inductor' raised:\n{message}\nSearch for `cudaErrorMemoryAllocation'")
    monkeypatch.setattr(hostmemory, "_in_use", lambda status: 3 * 2**30)
    limits = [
        hostmemory.Limit(most, "`memory` of profile p") for most in (3 * 2**30 + 2**27, 4 * 2**30, None)
    ]
    usage = "3.0 GiB of 3.1 GiB in use (`memory` of profile p)"
    assert [ending_of_exception(error, "cuda", limit) for limit in limits] == [
        Ending(Outcome.OOM_HOST, f"out of host memory: {usage}: {message}"),
        *[Ending(Outcome.OOM_GPU, message)] * 2,
    ]
