"""Products in float8 are the blocks' alone, and refused with what to install."""

import importlib.util

import pytest
import torch

from model import attention
from model.record import versions
from model.record.errors import Unsupported
from model.training import float8
from model.training.loss import cross_entropy
from model.training.trainer import build_model
from tests.amd import stand_in
from tests.model.conftest import run_config

pytestmark = pytest.mark.skipif(bool(versions.lacking("train.float8")), reason="this torch is too old for it")


def blocks():
    return build_model(run_config("math", dtype="bfloat16"), attention.load("math")).blocks


@pytest.mark.filterwarnings("default")  # torchao warns of PyTorch's versions
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_the_blocks_multiply_in_float8_and_the_loss_stays_near(recipe):
    """Emulated: the same rounding, without the tensor cores."""
    config = run_config("math", dtype="bfloat16")
    plain, rounded = (build_model(config, attention.load("math")) for _ in range(2))
    float8.convert(rounded.blocks, recipe, emulate=True)
    kinds = {name.rpartition(".")[2]: type(module).__name__ for name, module in rounded.named_modules()}
    assert {name for name, kind in kinds.items() if kind == "Float8Linear"} == {
        "query", "key", "value", "out", "gate", "up", "down",
    }  # fmt: skip
    assert plain.state_dict().keys() == rounded.state_dict().keys()
    tokens_BT = torch.randint(300, (2, 4, 32), generator=torch.Generator().manual_seed(0))
    losses = [cross_entropy(model(tokens_BT[0]), tokens_BT[1]) for model in (plain, rounded)]
    assert losses[0].item() != losses[1].item()
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=0.01)
    for loss in losses:
        loss.backward()
    for name, ours in plain.named_parameters():
        theirs = rounded.get_parameter(name).grad
        assert theirs.dtype == torch.bfloat16
        assert torch.nn.functional.cosine_similarity(ours.grad.flatten(), theirs.flatten(), dim=0) > 0.9, name


def test_without_torchao_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(float8, "find_spec", lambda name: None)
    with pytest.raises(Unsupported, match=r"pip install 'assay-studies\[float8\]'"):
        float8.convert(blocks(), "tensorwise")


def test_a_gpu_without_float8_is_refused(monkeypatch):
    monkeypatch.setattr(float8, "find_spec", importlib.util.find_spec)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100-SXM4-80GB")
    with pytest.raises(Unsupported, match="needs a GPU with float8, not NVIDIA A100"):
        float8.convert(blocks(), "tensorwise")


@pytest.mark.parametrize(("architecture", "has_float8"), [("gfx90a", False), ("gfx942", True)])
def test_of_amd_gpus_those_with_float8_are_taken(monkeypatch, architecture, has_float8):
    """An MI250X has none, though its compute capability is Hopper's."""
    stand_in(monkeypatch, architecture)
    monkeypatch.setattr(float8, "find_spec", lambda _name: "torchao is there")
    assert (not float8.lacking()) is has_float8


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_on_the_gpu_it_rounds_as_its_emulation_does(recipe):
    pytest.importorskip("torchao")
    config = run_config("math", dtype="bfloat16").model_copy(update={"device": "cuda"})
    real, emulated = (build_model(config, attention.load("math")) for _ in range(2))
    float8.convert(real.blocks, recipe)
    float8.convert(emulated.blocks, recipe, emulate=True)
    tokens_BT = torch.randint(300, (2, 4, 32), device="cuda")
    losses = [cross_entropy(model(tokens_BT[0]), tokens_BT[1]).item() for model in (real, emulated)]
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)
