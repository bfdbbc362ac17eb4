"""The model is the llama that its configuration describes."""

import importlib
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from model import attention
from model.measure.flops import flop_per_token, parameter_count, peak
from model.record import backends
from model.record.config import ModelConfig
from model.training.llama import Llama, rotary_table, rotate
from model.training.trainer import build_model
from tests.model.conftest import run_config

SMALL = ModelConfig(dim=32, layers=2, heads=4, kv_heads=2, ffn_dim=48, vocab_size=50)


def llama(config=SMALL, length=16):
    case = attention.Case("cpu", "float32", 2, length, config.heads, config.kv_heads, config.head_dim)
    torch.manual_seed(0)
    return Llama(config, length, partial(attention.attend, attention.load("math"), case))


def test_the_full_scale_llama_has_the_parameters_and_flop_of_the_study():
    full = ModelConfig()
    assert round(parameter_count(full) / 1e9, 2) == 8.05
    assert round(flop_per_token(full, 4096) / 1e9, 2) == 51.54


@pytest.mark.parametrize(
    "config",
    [SMALL, SMALL.model_copy(update={"kv_heads": 1, "layers": 1}), SMALL.model_copy(update={"kv_heads": 4})],
)
def test_the_counted_parameters_are_the_models(config):
    assert sum(parameter.numel() for parameter in llama(config).parameters()) == parameter_count(config)


def test_the_counted_parameters_do_not_change_under_compile():
    """What made the published MFU of compiled runs too high: names change, the configuration does not."""
    config = run_config(compile=True)
    model = build_model(config, attention.load("math"))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameter_count(config.model)


def test_no_position_sees_its_future():
    model, tokens = llama(), torch.randint(50, (2, 16))
    changed = tokens.clone()
    changed[:, 10:] = (changed[:, 10:] + 1) % 50
    logits, changed_logits = model(tokens), model(changed)
    torch.testing.assert_close(logits[:, :10], changed_logits[:, :10])
    assert not torch.allclose(logits[:, 10:], changed_logits[:, 10:])


def test_rotation_keeps_lengths_and_depends_on_distance_alone():
    cos, sin = rotary_table(SMALL, 12)
    q, k = torch.randn(1, 1, 1, 8).expand(1, 12, 1, 8), torch.randn(1, 1, 1, 8).expand(1, 12, 1, 8)
    q_turned, k_turned = rotate(q, cos, sin), rotate(k, cos, sin)
    torch.testing.assert_close(q_turned.norm(dim=-1), q.norm(dim=-1))
    scores = torch.einsum("bqhd,bkhd->qk", q_turned, k_turned)
    for distance in range(1, 12):
        diagonal = scores.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in backends.names()
        if not attention.load(name).unsupported_reasons(attention.Case("cpu", "float32", 2, 16, 4, 2, 8))
    ],
)
def test_every_backend_that_runs_here_gives_the_same_logits_and_gradients(name):
    reference, model = llama(), llama()
    for block in model.blocks:
        case = attention.Case("cpu", "float32", 2, 16, 4, 2, 8)
        block.attention.attend = partial(attention.attend, attention.load(name), case)
    tokens = torch.randint(50, (2, 16))
    torch.testing.assert_close(model(tokens), reference(tokens))
    for net in (model, reference):
        net(tokens).square().mean().backward()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4),
        ("NVIDIA H100 PCIe", "bfloat16", 756),
        ("NVIDIA GH200 120GB", "bfloat16", 989.4),
        ("NVIDIA H200", "float8", 1978.9),
        ("NVIDIA A100-SXM4-80GB", "float8", None),
        ("NVIDIA L4", "bfloat16", 121),
        ("NVIDIA L40S", "bfloat16", 362),
        ("Tesla T4", "float16", 65.1),
        ("Tesla T4", "bfloat16", None),
        ("Tesla T4", "float32", 8.1),
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 312),
        ("NVIDIA A100-PCIE-40GB", "bfloat16", 312),
        ("NVIDIA A100 80GB PCIe", "bfloat16", 312),
        ("NVIDIA GH200 480GB", "bfloat16", 989.4),
        ("NVIDIA GH200 144G HBM3e", "bfloat16", 989.4),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bfloat16", None),
        ("NVIDIA A100 80GB PCIe MIG 3g.40gb", "bfloat16", None),
        ("NVIDIA GH200 480GB MIG 1g.12gb", "bfloat16", None),
        ("NVIDIA H200 MIG 1g.18gb", "bfloat16", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bfloat16", None),
        ("NVIDIA A100-SXM-64GB", "bfloat16", None),  # an A100 of another make, with more multiprocessors
        ("NVIDIA H100 80GB HBM3", "float32", 67),
        ("NVIDIA A100-SXM4-80GB", "float32", 19.5),
        ("NVIDIA L4", "float32", 30.3),
        # Others write the names of cards in their own ways.
        ("H100 SXM", "bfloat16", 989.4),
        ("H100-80GB-SXM5", "bfloat16", 989.4),
        ("H100 PCIe", "float32", 51),
        ("H100", "bfloat16", None),  # three cards
        ("NVIDIA H100", "bfloat16", None),
        ("H200", "float8", 1978.9),
        ("H200 NVL", "bfloat16", None),
        ("GH200", "bfloat16", 989.4),
        ("A100 40 GB", "float16", 312),
        ("a100-sxm4-80gb", "float16", 312),
        ("T4", "float32", 8.1),
        ("NVIDIA Tesla T4", "float32", 8.1),
        ("L4", "float32", 30.3),
        ("L4 (32GB)", "float32", None),
        ("L4 32 GB", "float32", None),
        ("MI300X", "float32", 163.4),
        ("MI250X", "bfloat16", None),  # the card, or one of its halves
        ("NVIDIA H999", "bfloat16", None),
        ("AMD Instinct MI250X", "bfloat16", 383.0 / 2),  # of a card; PyTorch sees its two halves
        ("AMD Instinct MI250X", "float32", 95.7 / 2),
        ("AMD Instinct MI250X", "float8", None),
        ("AMD Instinct MI250X / MI250", "bfloat16", None),  # either
        ("AMD Instinct MI300X", "bfloat16", 1307.4),
        ("AMD Instinct MI300X", "float16", 1307.4),
        ("AMD Instinct MI300X", "float32", 163.4),
        ("AMD Instinct MI300X", "float8", 2614.9),
        ("AMD Instinct MI300A", "bfloat16", None),
        ("CPU: anything", "float32", None),
    ],
)
def test_a_peak_is_known_with_its_source_or_not_at_all(name, dtype, tflops):
    peak_rate = peak(name, dtype)
    assert (peak_rate and peak_rate.flops / 1e12) == (tflops and pytest.approx(tflops))
    assert peak_rate is None or peak_rate.source


def test_the_seam_refuses_another_layout_than_the_case_says():
    case = attention.Case("cpu", "float32", 2, 16, 4, 2, 8)
    q, kv = torch.randn(2, 16, 4, 8), torch.randn(2, 16, 2, 8)
    backend = attention.load("auto")
    assert attention.attend(backend, case, q, kv, kv).shape == q.shape
    for tensor in (q.transpose(1, 2), q[:, :8], q[..., :4]):
        with pytest.raises(ValueError, match=r"expected \(B, T, heads, D\)"):
            attention.attend(backend, case, tensor, kv, kv)
    broken = replace(backend, attend=lambda q, k, v, causal: q.transpose(1, 2))
    with pytest.raises(ValueError, match="output has shape"):
        attention.attend(broken, case, q, kv, kv)


def test_the_loop_that_benchmarks_compare_with_is_the_same_llama(monkeypatch):
    """It pairs rotary components as neighbours, this one by halves: the same up to their order in a head."""
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "benchmarks")
    reference = importlib.import_module("reference")
    plain, model, tokens_BT = reference.Reference(SMALL, 16), llama(length=16), torch.randint(50, (2, 16))
    halves = torch.arange(SMALL.head_dim).view(-1, 2).T.flatten()
    for block, layer in zip(model.blocks, plain.layers, strict=True):
        weights = layer.state_dict()
        for name in ("attention.query.weight", "attention.key.weight"):
            weights[name] = weights[name].unflatten(0, (-1, SMALL.head_dim))[:, halves].flatten(0, 1)
        block.load_state_dict(weights)
    for name in ("embedding", "norm", "head"):
        getattr(model, name).load_state_dict(getattr(plain, name).state_dict())
    torch.testing.assert_close(model(tokens_BT), plain(tokens_BT), rtol=0, atol=2e-6)
