"""Compiles the project's attention in plain Triton for NVIDIA GPUs, without one, and prints what comes out, as JSON.

    python -m tests.model.attention.kernels.compiled_nvidia \
        '[["portable", "75", "D64 float16", "D64 float16 dropout"], ["flash1", "80", "64", "256", "101376"]]'

It is compiled as its callers launch it, for a GPU at some head dims and precisions. A process of its own, like `compiled.py`, which forks one for each of these
questions, in which torch and Triton are then imported. With a tile's queries and keys and the shared memory of a card,
it says why both passes at head dim 128 have no room there; null where they have.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)
os.environ["TRITON_DISABLE_LINE_INFO"] = "1"  # a tenth of the time

import torch
import triton
from triton.backends.compiler import GPUTarget

from model import attention
from model.attention.kernels import flash1
from model.attention.kernels.portable import backward, forward, tiles
from model.record.errors import Unsupported

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
MATRIX_INSTRUCTIONS = r"wgmma\.mma_async|mma\.sync"


class NoDriver:
    """What Triton asks of a GPU before it compiles."""

    get_current_target = staticmethod(lambda: GPUTarget("cuda", int(sys.argv[2]), 32))
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device=None: 0)
    get_active_torch_device = staticmethod(lambda: torch.device("cpu"))
    map_python_to_cpp_type = staticmethod(lambda ty: ty)


class CardThatIsNotThere(NoDriver):
    """The same, with so much shared memory; what fits is loaded and launched as far as Triton can tell."""

    @staticmethod
    def launcher_cls(_source: Any, _metadata: Any) -> Any:
        return lambda *_args: None

    class utils:
        get_device_properties = staticmethod(lambda _device: {"max_shared_mem": int(sys.argv[5])})
        load_binary = staticmethod(lambda *_args: (None, None, 0, 0, 1024))


reports: dict[str, dict[str, Any]] = {}  # by kernel, head dim and precision; the worst of its variants counts


def instead_of_launches(label: str) -> Any:
    """Compile each kernel that is launched, and note what came out."""

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        report = described(original_run(kernel, *args, grid=grid, warmup=True, **options))
        previous = reports.get(f"{kernel.__name__} {label}", report)
        reports[f"{kernel.__name__} {label}"] = {
            quantity: max(value, previous[quantity]) for quantity, value in report.items()
        }

    return run


def described(compiled: Any) -> dict[str, Any]:
    """A kernel's shared memory, the bytes of each thread's stack, its own barriers, and its matrix instructions."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = subprocess.check_output([CUOBJDUMP, "-res-usage", file.name], text=True)
    return {
        "shared_bytes": compiled.metadata.shared,
        "stack_bytes": int(re.search(r"STACK:(\d+)", usage)[1]),  # type: ignore[index]
        # That the kernel itself asks for: those that the compiler needs it adds later.
        "barriers": len(re.findall(r"\b(?:ttg|gpu)\.barrier", compiled.asm["ttgir"])),
        "instructions": sorted(set(re.findall(MATRIX_INSTRUCTIONS, compiled.asm["ptx"]))),
    }


def compile_portable(head_dim: int, dtype: torch.dtype, *dropout: Any) -> None:
    """Both passes, and the forward of a few queries."""
    q, k = _tensors(head_dim, dtype)
    forward.forward(q[:, :1], k, k, False, 0, None, *dropout)
    o, lse = forward.forward(q, k, k, True, 0, None, *dropout)
    backward.backward(o, q, k, k, o, lse, True, 0, None, *dropout)


def compile_flash1(head_dim: int, dtype: torch.dtype) -> None:
    """Both passes."""
    q, k = _tensors(head_dim, dtype)
    o, stats = flash1.flash1_attention(q, k, k, True, 0)
    flash1.flash1_attention_backward(o, q, k, k, o, stats, True, 0)


def _tensors(head_dim: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries, and keys: of two heads, and more than a tile of them, whose last is not full."""
    return torch.zeros(1, 200, 4, head_dim, dtype=dtype), torch.zeros(1, 200, 2, head_dim, dtype=dtype)


def refusal(attend: Any) -> list[str] | None:
    """Why the card has no room for a tile."""
    q, k = (x.requires_grad_() for x in _tensors(128, torch.float16))
    try:
        attend(q, k, k, True, tuple(map(int, sys.argv[3:5]))).backward(q.detach())
    except Unsupported as error:
        return error.reasons
    return None


def answer() -> Any:
    """What is asked by this process's arguments."""
    name, capability, *arguments = sys.argv[1:]
    compute_capability = divmod(int(capability), 10)
    tiles.chosen = lambda kernel, head_dim, dtype, device: tiles.for_gpu(compute_capability, dtype)[kernel][
        max(64, head_dim)
    ]
    flash1.tile_of = lambda which, dtype, columns, device: flash1.for_gpu(compute_capability, dtype)[
        which, max(64, columns)
    ]
    if arguments[0].isdecimal():
        triton.runtime.driver.set_active(CardThatIsNotThere())
        return refusal(attention.load(name).attend_by_tile)
    triton.runtime.driver.set_active(NoDriver())
    for label in arguments:
        head_dim, precision, *dropout = label.split()
        triton.runtime.jit.JITFunction.run = instead_of_launches(label)
        compile_both = {"portable": compile_portable, "flash1": compile_flash1}[name]
        dropout_arguments = (2, torch.zeros((), dtype=torch.int64)) if dropout else ()
        compile_both(int(head_dim[1:]), getattr(torch, precision), *dropout_arguments)
    return reports


if __name__ == "__main__":
    original_run = triton.runtime.jit.JITFunction.run
    questions, answers = json.loads(sys.argv[1]), []
    for question in questions:
        with tempfile.TemporaryFile("w+") as file:
            if not (pid := os.fork()):
                sys.argv[1:] = question
                json.dump(answer(), file)
                file.flush()
                os._exit(0)
            if code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
                sys.exit(f"{question} ended with code {code}")
            file.seek(0)
            answers.append(json.load(file))
    sys.stdout.write(json.dumps(answers))
