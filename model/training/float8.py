"""Products in 8 bits by torchao's linear layers (Micikevicius et al. 2022, arXiv:2209.05433)."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import torch
from torch import nn

from model.record import rocm
from model.record.errors import Unsupported

_OLDEST = (8, 9)  # compute capability with tensor cores for 8 bits: Ada
# Of AMD: MI300, whose numbers are another kind (fnuz), and MI350. torchao takes the kind that the GPU has.
_AMD = ("gfx942", "gfx950")


def convert(blocks: nn.Module, recipe: str, emulate: bool = False) -> None:
    """Let every linear layer inside multiply in float8, scaled by tensor or by row, forward and backward.

    Parameters and their gradients keep their precision.

    Args:
        emulate: round to float8 and multiply in the parameters' precision, which any device can do.

    Raises:
        Unsupported: torchao is not installed, or the GPU has no float8.
    """
    if reasons := lacking(emulate):
        raise Unsupported(reasons)
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = replace(Float8LinearConfig.from_recipe_name(recipe), emulate=emulate)
    convert_to_float8_training(blocks, config=config)


def lacking(emulate: bool = False) -> list[str]:
    """List what is missing here, each with what to do."""
    if find_spec("torchao") is None:
        return ["train.float8 needs torchao: pip install 'assay-studies[float8]'"]
    if emulate:
        return []
    if architecture := rocm.architecture():
        in_hardware = architecture in _AMD
    else:
        in_hardware = torch.cuda.get_device_capability() >= _OLDEST
    if in_hardware:
        return []
    return [f"train.float8 needs a GPU with float8, not {torch.cuda.get_device_name()}"]
