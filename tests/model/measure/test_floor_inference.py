"""The least time of a prefill is bound by FLOP, and that of a decoded token by what it has to read."""

import pytest

from model.measure.floor_inference import floor
from model.measure.flops import parameter_count, prefill_flop_per_token
from model.record.config import DataConfig, InferenceConfig, ModelConfig, RunConfig
from tests.model.measure.test_floor import ceilings


def llama(model=None, **inference):
    """8B, one prompt of 4096 tokens, bfloat16, unless told otherwise."""
    given = {"task": "inference", "data": DataConfig(path="x"), "inference": InferenceConfig(**inference)}
    return RunConfig(**given, model=model or ModelConfig())


def parts(config, **rates):
    return {(each.phase, each.part): each for each in floor(config, ceilings(config, **rates))}


def test_the_products_of_a_prompt_are_the_2_flop_a_token_that_mfu_counts():
    config = llama(batch_size=2)
    model, tokens = config.model, 2 * 4096
    flop = parts(config)["step", "products"].flop
    norms = 2 * (2 * model.layers + 1) * model.dim * tokens
    attention = 4 * model.layers * model.dim * 4096 * tokens
    assert flop + norms + attention == pytest.approx(prefill_flop_per_token(model, 4096) * tokens, rel=1e-9)


def test_a_prompt_takes_its_flop_at_the_measured_rate_and_the_head_its_weights():
    config = llama()
    found = parts(config, flops=5e14, bandwidth=4e12)
    head = config.model.dim * config.model.vocab_size
    blocks = found["step", "products"].flop - 2 * head
    assert found["step", "products"].seconds == pytest.approx(blocks / 5e14 + 2 * head / 4e12)
    attention = found["step", "attention"]
    assert attention.flop == 2 * 32 * 4096 * 4096 * 4096
    assert attention.seconds == pytest.approx(attention.flop / 5e14, rel=0.02)


def test_a_token_takes_all_weights_but_the_embedding_and_the_cache_from_memory():
    config = llama(new_tokens=101)
    found = parts(config, flops=5e14, bandwidth=4e12)
    model, products, attention = config.model, found["decode", "products"], found["decode", "attention"]
    norms = (2 * model.layers + 1) * model.dim
    assert products.bytes == 2 * (parameter_count(model) - model.vocab_size * model.dim - norms)
    assert products.seconds == pytest.approx(products.bytes / 4e12)
    assert attention.bytes == 2 * 2 * 32 * (4096 + 51) * 8 * 128 and attention.flop is None
    assert attention.seconds == pytest.approx(attention.bytes / 4e12)


def test_of_many_samples_the_flop_of_a_token_bind_it_and_each_has_its_own_cache():
    one, many = (parts(llama(batch_size=size), flops=5e14, bandwidth=4e12) for size in (1, 512))
    products = many["decode", "products"]
    assert products.bytes == one["decode", "products"].bytes
    assert products.seconds == pytest.approx(products.flop / 5e14)
    assert many["decode", "attention"].bytes == 512 * one["decode", "attention"].bytes


def test_a_short_prompt_too_reads_all_weights():
    found = parts(llama(prompt_length=8), flops=5e14, bandwidth=4e12)
    products = found["step", "products"]
    assert products.seconds == pytest.approx(products.bytes / 4e12)


@pytest.mark.parametrize(("dtype", "size"), [("bfloat16", 2), ("float32", 4)])
def test_traffic_is_counted_in_the_runs_precision(dtype, size):
    """By hand, for one layer of width 4, two heads of 2 (one key head), inner width 6, 10 words, 3 tokens."""
    model = ModelConfig(dim=4, layers=1, heads=2, kv_heads=1, ffn_dim=6, vocab_size=10)
    found = parts(llama(model, prompt_length=3, new_tokens=1, dtype=dtype), bandwidth=1e6)
    of_a_token = 2 * 2 * 4 + 2 * 2 * 4 + 2 * (4 + 2) + 3 * 6 + 2 * 4
    assert found["step", "elementwise"].bytes == 3 * of_a_token * size
    assert found["decode", "elementwise"].bytes == of_a_token * size
    assert found["decode", "elementwise"].seconds == pytest.approx(of_a_token * size / 1e6)
    assert found["decode", "attention"].bytes == 2 * 4 * 2 * size


def test_what_decodes_nothing_has_no_floor_of_a_token():
    assert {phase for phase, _ in parts(llama(new_tokens=0))} == {"step"}
