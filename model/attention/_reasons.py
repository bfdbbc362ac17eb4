"""Why a backend cannot run a case here: one sentence per reason, saying what is missing and what to do.

Every function but `left_out` returns a list, which is empty if nothing is missing. None of them raises: a
missing package or GPU is a reason like any other. Torch is imported only where it must be asked about the
GPU: to refuse what the case alone rules out takes no seconds.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from importlib import import_module

from model.attention import Case, Fp8, Supports, no_dropout
from model.record import rocm
from model.record.case import FP8
from model.record.errors import one_line, out_of_host_memory

Capability = tuple[int, int]
_HOPPER = ((9, 0), (9, 1))


def declared(case: Case, supports: Supports, fp8: Fp8 | None = None) -> list[str]:
    """Refuse what the backend does not declare to support, so that tables and refusals agree."""
    if case.fp8 and fp8:
        supports = replace(
            supports,
            dtypes=(FP8,),
            largest_head_dim=fp8.largest_head_dim,
            head_dim_multiple=fp8.head_dim_multiple,
            capability=_HOPPER,
        )
    if case.device not in supports.devices:
        whose = "a GPU" if supports.amd else "an NVIDIA GPU"
        return [f"needs {whose}, but the device is '{case.device}': use --set device=cuda on a GPU node"]
    reasons = _gpu_is_there(case)
    if case.heads % case.kv_heads:
        reasons.append(
            f"{case.heads} heads cannot share {case.kv_heads} key/value heads: "
            "set model.kv_heads to a divisor"
        )
    other_gpu = _generation(case, supports)
    reasons += _dtype(case, supports, advise=not other_gpu)
    reasons += _head_dim(case, supports) + other_gpu
    if case.causal and True not in supports.causal:
        reasons.append("has no causal mask, and would let tokens see their future: choose another backend")
    if not case.causal and False not in supports.causal:
        reasons.append("is causal only: choose another backend for attention without a mask")
    if case.dropout and not supports.dropout:
        reasons.append(no_dropout(case))
    if case.sequence_length % supports.length_multiple:
        reasons.append(
            f"takes sequence lengths in multiples of {supports.length_multiple}, not {case.sequence_length}: "
            "change train.sequence_length"
        )
    return reasons


def _dtype(case: Case, supports: Supports, advise: bool) -> list[str]:
    """The kernel exists only in these precisions, of which an old GPU has not all.

    Before Ampere PyTorch emulates bfloat16, slowly; a run in it would measure the emulation.

    Args:
        advise: whether a precision that this GPU has can help.
    """
    allowed, gpu = supports.dtypes, gpu_capability(case)
    old = gpu is not None and gpu < (8, 0)
    usable = [name for name in allowed if name != "bfloat16" or not old]
    if case.dtype in usable:
        return []
    lost = f", {supports.float32_lost}" if case.dtype == "float32" and supports.float32_lost else ""
    reasons = [] if case.dtype in allowed else [f"takes {' or '.join(allowed)}, not {case.dtype}{lost}"]
    if gpu and old and "bfloat16" in allowed:
        reasons.append(f"this GPU (compute capability {gpu[0]}.{gpu[1]}) has no bfloat16")
    text = ", and ".join(reasons)
    trained = [name for name in usable if name != "float16"]
    if advise and trained:
        return [f"{text}: use --set train.dtype={trained[0]}"]
    left = ", which leaves float16 for what is not training" * (advise and bool(usable))
    return [f"{text}{left}: choose another backend{' or a newer GPU' * (advise and old)}"]


def _head_dim(case: Case, supports: Supports) -> list[str]:
    """The kernel takes head dims from a smallest up to a largest, in steps."""
    smallest, largest = supports.smallest_head_dim, supports.largest_head_dim
    multiple = supports.head_dim_multiple
    fits = smallest <= case.head_dim <= (largest or case.head_dim)
    if fits and case.head_dim % multiple == 0:
        return []
    if smallest == largest:
        return [f"takes head dim {largest}, not {case.head_dim}: set model.heads to model.dim / {largest}"]
    above = f" from {smallest}" if smallest > 1 else ""
    below = f" up to {largest}" if largest else ""
    steps = f" that are multiples of {multiple}" if multiple > 1 else ""
    return [
        f"takes head dims{above}{below}{steps}, not {case.head_dim}: "
        "change model.dim or model.heads (the head dim is dim / heads)"
    ]


def tile(case: Case) -> list[str]:
    """Tiles in Triton have a power of two of queries and of keys; whether they fit, its compiler says."""
    if case.tile is None or set(case.tile) <= {*TILES}:
        return []
    rows, keys = case.tile
    return [
        f"takes tiles of {', '.join(map(str, TILES))} queries or keys, not {rows} x {keys}: change call.tile"
    ]


TILES = (16, 32, 64, 128, 256, 512)  # of the project's own kernels in Triton


def float32_on_cpu(case: Case) -> list[str]:
    """PyTorch's fused CPU kernel adds up dK and dV in the inputs' precision, tile by tile and head by head.

    Found by `model.attention.verify` with torch 2.13: two to four times the error of one rounding, growing
    with the number of tiles and of heads in a group.
    """
    if case.device != "cpu" or case.dtype == "float32":
        return []
    return [
        f"sums dK and dV in {case.dtype} on a CPU, which loses precision: "
        "use --set train.dtype=float32, or --set attention=math"
    ]


def package(module: str, symbol: str, install: str) -> list[str]:
    """Whether the package can be imported and has the function, and if not, what to install.

    It really is imported: FlashAttention 2 and 4 share the name `flash_attn`, so finding a module proves
    nothing, and a package built for another torch is found but cannot be loaded.

    Raises:
        MemoryError, OSError, ImportError: it does not fit into host memory.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other people's imports warn about their own matters
            getattr(import_module(module), symbol)
    except ModuleNotFoundError as error:
        if error.name and f"{module}.".startswith(f"{error.name}."):
            return [f"the package with `{module}` is not installed: {install}"]
        return [f"`{module}` is installed, but lacks the module `{error.name}`: {install}"]
    except AttributeError:
        return [f"the installed `{module}` has no `{symbol}`, so it is a different package: {install}"]
    except Exception as error:  # a foreign binary may raise anything
        if out_of_host_memory(error):
            raise
        return [f"`{module}` cannot be loaded ({one_line(error)}): {install}"]
    return []


_LEFT_OUT = re.compile(r"does not support|only supports")


def left_out(error: RuntimeError, module: str) -> str:
    """What a call says of a package built without some precisions or head dims: only the call itself knows.

    Returns:
        The reason, or "" if that is not what it says.
    """
    text = " ".join(str(error).split())
    return f"{text}: build {module} with it" if _LEFT_OUT.search(text) else ""


def cuda_package(case: Case, module: str, symbol: str, install: str) -> list[str]:
    """Ask `package` about one for NVIDIA GPUs: beside an AMD GPU it is not what is missing."""
    if case.device == "cuda" and rocm.version():
        return []
    return package(module, symbol, install)


def gpu_capability(case: Case) -> Capability | None:
    """Compute capability of the NVIDIA GPU that the run would use; None where there is none to ask."""
    if case.device != "cuda" or _gpu_is_there(case) or rocm.version():
        return None
    import torch

    return torch.cuda.get_device_capability()


def _generation(case: Case, supports: Supports) -> list[str]:
    """The kernel is built for some generations of GPUs; no reason where there is no GPU to ask."""
    if case.device != "cuda":
        return []
    if architecture := rocm.architecture():
        if architecture.startswith(supports.amd):
            return []
        taken = f"AMD's {' and '.join(supports.amd)}" if supports.amd else "NVIDIA GPUs"
        return [f"takes {taken}, not AMD's {architecture}: use --set attention=auto, or other nodes"]
    if supports.capability is None or (gpu := gpu_capability(case)) is None:
        return []
    first, too_new = supports.capability
    if first <= gpu and (too_new is None or gpu < too_new):
        return []
    wanted = (
        _GENERATIONS.get((first, too_new)) or f"a GPU of compute capability {first[0]}.{first[1]} or later"
    )
    return [f"needs {wanted}; this GPU has compute capability {gpu[0]}.{gpu[1]}: choose other nodes"]


_GENERATIONS = {
    ((8, 0), None): "an Ampere or later GPU (8.0 and up)",
    _HOPPER: "a Hopper GPU (9.0)",
    ((9, 0), (11, 0)): "a Hopper or data-centre Blackwell GPU (9.x or 10.x)",
}


def _gpu_is_there(case: Case) -> list[str]:
    if case.device != "cuda":
        return []
    import torch

    if torch.version.cuda is None and rocm.version() is None:
        return [
            f"needs a GPU build of PyTorch, and {torch.__version__} is a CPU build: "
            "install one with CUDA, or for AMD GPUs one with ROCm"
        ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns about a driver that is too old
        if not torch.cuda.is_available():
            whose, tool = ("AMD", "rocminfo") if rocm.version() else ("NVIDIA", "nvidia-smi")
            return [f"PyTorch finds no usable {whose} GPU here: run on a GPU node, and check {tool} there"]
    return []
