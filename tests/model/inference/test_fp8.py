"""Prompts whose attention is to numbers of 8 bits, while the cache and decoding keep bfloat16."""

from dataclasses import replace

import pytest
import torch

from model import attention
from model.attention import Kernels, Launches
from model.inference.infer import attend_by_length, built
from model.record.case import FP8
from model.record.config import RunConfig
from model.training import certify
from model.training.llama import Cache
from tests.model.attention.verify.test_fp8 import backend

PROMPT, NEW = 37, 5


def run_config(attention_dtype=FP8, **inference):
    return RunConfig.model_validate({
        "attention": "math",
        "task": "inference",
        "device": "cpu",
        "model": {"dim": 64, "layers": 3, "heads": 4, "kv_heads": 2, "ffn_dim": 96, "vocab_size": 300},
        "data": {"path": "unused"},
        "inference": {
            "steps": 3, "warmup_steps": 1, "batch_size": 2, "prompt_length": PROMPT, "new_tokens": NEW,
            "dtype": "bfloat16", "attention_dtype": attention_dtype, **inference,
        },
    })  # fmt: skip


@torch.inference_mode()
def test_prompts_are_read_in_8_bits_and_tokens_are_decoded_in_the_caches_precision():
    config, calls = run_config(), []
    float8, math = backend(), attention.load("math")

    def attend_fp8(*inputs):
        calls.append([tensor.dtype for tensor in inputs[:3]])
        return float8.fp8.attend(*inputs)

    def attend(*inputs):
        calls.append([tensor.dtype for tensor in inputs[:3]])
        return math.attend(*inputs)

    watched = replace(float8, attend=attend, fp8=replace(float8.fp8, attend=attend_fp8))
    model = built(run_config("dtype"))
    tokens_BT = torch.randint(300, (2, PROMPT + 1), generator=torch.Generator().manual_seed(5))

    def logits(use, case):
        for block in model.blocks:
            block.attention.attend = attend_by_length(use, case)
        cache = Cache.empty(config.model, 2, config.inference.room, model.embedding.weight)
        return [model.extend(cache, tokens_BT[:, :PROMPT]), model.extend(cache, tokens_BT[:, PROMPT:])]

    exact = logits(math, run_config("dtype").attention_case)
    rounded = logits(watched, config.attention_case)
    assert calls == [[torch.float8_e4m3fn] * 3] * 3 + [[torch.bfloat16] * 3] * 3
    for rounded_BV, exact_BV in zip(rounded, exact, strict=True):
        error = (rounded_BV - exact_BV).float().norm() / exact_BV.float().norm()
        assert 0.001 < error < 0.1  # E4M3 rounds by up to 1/16


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda right: right, ""),
        (lambda _right: backend(mixed=True), "float8_e4m3fn"),
        (lambda right: replace(right, attend=lambda q, k, v, causal: 1.01 * q), "Q1 T42"),
    ],
)
def test_the_certificate_covers_both_the_prompt_and_what_is_decoded(monkeypatch, change, fault):
    kernels = Kernels(forward="^aten::(einsum|bmm)$", backward="^aten::bmm$")
    stand_in = replace(change(backend()), launches=Launches(cpu=kernels))
    load = attention.load
    monkeypatch.setattr(certify.attention, "load", lambda name: stand_in if name == "math" else load(name))
    monkeypatch.setattr(certify.cases, "LONGEST", 4096)
    case = run_config().attention_case
    assert [call.dtype for call in case.calls] == [FP8, "bfloat16", "bfloat16"]
    certificate = certify.certify_case("math", case)
    assert certificate.verdict == ("wrong" if fault else "right"), certificate.reasons
    assert fault in (certificate.reasons or [""])[0]
    cases = " ".join(check.case for check in certificate.checks)
    assert "float8_e4m3fn causal" in cases and "Q1 T42 H4 K2 D16 bfloat16" in cases


@pytest.mark.parametrize("settings", [{"dtype": "float32"}, {"compile": True}])
def test_what_does_not_go_with_it_is_refused_by_name(settings):
    (name,) = settings
    with pytest.raises(ValueError, match=f"attention_dtype float8_e4m3fn .* set {name}: "):
        run_config(**settings)


def test_runs_without_it_keep_their_ids_and_runs_with_it_have_others():
    plain, float8 = run_config("dtype").identity(), run_config().identity()
    assert "attention_dtype" not in plain["inference"]
    assert float8["inference"].pop("attention_dtype") == FP8 and float8 == plain
