"""One call of a backend on known numbers, without model.attention.verify's judgement of it."""

from collections.abc import Callable

from torch import Tensor

from model import attention
from model.attention.verify import data
from model.attention.verify.call import gradients, leaves
from model.attention.verify.cases import Variant
from model.attention.verify.reference import Inputs
from model.record import backends
from model.record.case import Case

CPU = Case("cpu", "float32", batch=1, sequence_length=64, heads=4, kv_heads=2, head_dim=16)
CUDA = Case("cuda", "bfloat16", batch=1, sequence_length=256, heads=8, kv_heads=2, head_dim=128)
RUN_HERE = [name for name in backends.names() if not attention.load(name).unsupported_reasons(CPU)]


def drawn(case: Case, kind: str = "plain", seed: int = 0) -> Inputs:
    """Known numbers; in float64 too, which no backend's case has."""
    return data.drawn(Variant(case, kind, seed=seed))


def run(attend: Callable, inputs: Inputs, *mask: bool) -> dict[str, Tensor]:
    """Output and gradients by step."""
    tensors = leaves(inputs)
    o = attend(*tensors, *mask)
    o.backward(inputs.do)
    return {"o": o.detach()} | gradients(tensors)


def off(x: Tensor, exact: Tensor) -> float:
    """Relative error."""
    return ((x.double() - exact.double()).norm() / exact.double().norm()).item()
