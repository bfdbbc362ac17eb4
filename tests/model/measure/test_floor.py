"""The least time of a step is counted work over measured rates.

That of a prefill is bound by FLOP, and that of a decoded token by what it has to read.
"""

import pytest

from model.measure.floor import (
    attention_flop,
    elementwise_bytes,
    floor,
    loss_bytes,
    optimizer_bytes,
    products,
    shapes,
    tokens,
    tokens_at_once,
)  # fmt: skip
from model.measure.flops import flop_per_token, parameter_count, prefill_flop_per_token
from model.record.config import (
    DataConfig,
    InferenceConfig,
    ModelConfig,
    ParallelConfig,
    RunConfig,
    TrainConfig,
)
from model.record.speed import PASSES, Ceilings, ProductTiming, Timing

LLAMA = RunConfig(data=DataConfig(path="x"))  # 8B, one sample of 4096 tokens, bfloat16
LAST_BYTES = {"bfloat16": 2, "float32": 4}


def timing(seconds):
    return Timing(seconds=seconds, seconds_25=seconds, seconds_75=seconds, repeats=5)


def ceilings(config, flops=5e14, bandwidth=4e12, **slower):
    """A device on which every product has one rate, but those of a pass named in `slower`."""
    timings = [
        ProductTiming(
            step=step, inputs=inputs, outputs=outputs, tokens=8, columns=outputs,
            timing=timing(16 * inputs * outputs / slower.get(step, flops)),
        )
        for inputs, outputs in shapes(config.model, config.parallel.tensor) for step in PASSES
    ]  # fmt: skip
    return Ceilings(products=timings, traffic_bytes=int(bandwidth), traffic=timing(1.0), launch=timing(5e-6))


def parts(config, measured):
    return {part.part: part for part in floor(config, measured)}


def test_the_products_are_the_6_flop_a_token_of_every_weight_that_is_one():
    flop = parts(LLAMA, ceilings(LLAMA))["products"].flop
    model = LLAMA.model
    norms = (2 * model.layers + 1) * model.dim
    weights = parameter_count(model) - model.vocab_size * model.dim - norms
    assert flop == 6 * weights * tokens(LLAMA)
    attention = 12 * model.layers * model.dim * 4096 * tokens(LLAMA)
    assert flop + attention + 6 * norms * tokens(LLAMA) == flop_per_token(model, 4096) * tokens(LLAMA)


def test_attention_is_seven_twelfths_of_what_mfu_counts_halved_by_the_mask():
    assert attention_flop(LLAMA) == 7 * 32 * 4096 * 4096 * 4096
    twice = LLAMA.model_copy(update={"train": TrainConfig(batch_size=2, sequence_length=2048)})
    assert attention_flop(twice) == attention_flop(LLAMA) / 2


def test_each_shape_and_pass_takes_its_own_rate():
    even, uneven = (parts(LLAMA, ceilings(LLAMA, **slower)) for slower in ({}, {"weight": 2.5e14}))
    assert even["products"].seconds == pytest.approx(even["products"].flop / 5e14)
    assert uneven["products"].seconds == pytest.approx(even["products"].seconds * 4 / 3)
    assert uneven["attention"].seconds == pytest.approx(even["attention"].flop / (5e14 * 3 / 4))


def test_a_batch_in_parts_has_the_same_work_at_the_rates_of_its_parts():
    split_config = LLAMA.model_copy(update={"train": TrainConfig(batch_size=4, accumulate=2)})
    assert tokens_at_once(split_config) == 2 * 4096 == tokens(split_config) / 2
    whole_config = LLAMA.model_copy(update={"train": TrainConfig(batch_size=4)})
    assert floor(split_config, ceilings(LLAMA)) == floor(whole_config, ceilings(LLAMA))


def shared(**parallel):
    """A run of several processes, and its floor by part at one rate."""
    config = LLAMA.model_copy(
        update={"train": TrainConfig(batch_size=4), "parallel": ParallelConfig(**parallel)}
    )
    return config, parts(config, ceilings(config))


@pytest.mark.parametrize(
    ("parallel", "copies"),
    [({"replicate": 4}, 4), ({"shard": 4}, 1), ({"replicate": 2, "shard": 2}, 2), ({"context": 4}, 1)],
)
def test_the_work_is_one_processs_share_of_the_batch_and_of_the_parameters(parallel, copies):
    (alone, whole), (config, share) = shared(), shared(**parallel)
    assert 4 * tokens(config) == tokens(alone)
    for part in ("products", "attention"):
        assert 4 * share[part].flop == whole[part].flop
        assert 4 * share[part].seconds == pytest.approx(whole[part].seconds)
    assert 4 * share["loss"].bytes == whole["loss"].bytes
    assert 4 * share["optimizer"].bytes == copies * whole["optimizer"].bytes
    written = 2 * LLAMA.model.vocab_size * LLAMA.model.dim  # the embedding's gradient, whole in each of them
    assert 4 * (share["elementwise"].bytes - written) == whole["elementwise"].bytes - written


def test_heads_that_processes_share_are_work_of_one_of_them_and_the_output_head_is_that_of_all():
    (alone, whole), (_, share) = shared(), shared(tensor=4)
    model = LLAMA.model
    head = 6 * model.dim * model.vocab_size * tokens(alone)
    assert 4 * (share["products"].flop - head) == whole["products"].flop - head
    assert 4 * share["attention"].flop == whole["attention"].flop
    assert share["loss"].bytes == whole["loss"].bytes
    unsharded_bytes = 16 * ((2 * model.vocab_size + 2 * model.layers + 1) * model.dim)
    assert 4 * (share["optimizer"].bytes - unsharded_bytes) == whole["optimizer"].bytes - unsharded_bytes


def test_a_shape_that_was_not_measured_has_no_rate_of_another():
    measured = ceilings(LLAMA)
    with pytest.raises(KeyError):
        floor(LLAMA.model_copy(update={"model": ModelConfig(ffn_dim=8192)}), measured)


def test_a_rate_of_fewer_columns_and_tokens_is_of_what_was_computed():
    part = ProductTiming(step="input", inputs=10, outputs=1000, tokens=5, columns=20, timing=timing(2.0))
    assert part.flops == 2 * 5 * 10 * 20 / 2.0


@pytest.mark.parametrize("dtype", LAST_BYTES)
def test_traffic_is_counted_in_the_runs_precision(dtype):
    """By hand, for one layer of width 4, two heads of 2 (one key head), inner width 6, 10 words, 3 tokens."""
    model = ModelConfig(dim=4, layers=1, heads=2, kv_heads=1, ffn_dim=6, vocab_size=10)
    train = TrainConfig(sequence_length=3, batch_size=1, dtype=dtype)
    config = LLAMA.model_copy(update={"model": model, "train": train})
    size = LAST_BYTES[dtype]
    assert optimizer_bytes(config) == 8 * parameter_count(model) * size
    assert loss_bytes(config) == 2 * 3 * 10 * size
    norms, residuals, rotary, swiglu = 3 * 5 * 3 * 4, 2 * 3 * 3 * 4, 4 * 3 * (4 + 2), 8 * 3 * 6
    embedding = 3 * 3 * 4 + 10 * 4
    assert elementwise_bytes(config) == (norms + residuals + rotary + swiglu + embedding) * size
    floors = parts(config, ceilings(config, bandwidth=1e6))
    assert floors["loss"].seconds == pytest.approx(loss_bytes(config) / 1e6)
    assert floors["loss"].flop is None and floors["products"].bytes is None


def test_the_layers_are_those_of_the_llama():
    """Their weights, the embedding and the norms are all parameters of the model that is trained."""
    import torch

    from model.training.llama import Llama

    model = ModelConfig(dim=8, layers=3, heads=2, kv_heads=1, ffn_dim=12, vocab_size=20)
    llama = Llama(model, 4, lambda q, k, v: q)
    linear = sorted(
        (layer.in_features, layer.out_features)
        for layer in llama.modules()
        if isinstance(layer, torch.nn.Linear)
    )
    assert linear == sorted(
        (layer.inputs, layer.outputs) for layer in products(model) for _ in range(layer.count)
    )


def reading(model=None, **inference):
    """8B, one prompt of 4096 tokens, bfloat16, unless told otherwise."""
    settings = {"task": "inference", "data": DataConfig(path="x"), "inference": InferenceConfig(**inference)}
    return RunConfig(**settings, model=model or ModelConfig())


def parts_by_phase(config, **rates):
    return {(part.phase, part.part): part for part in floor(config, ceilings(config, **rates))}


def test_the_products_of_a_prompt_are_the_2_flop_a_token_that_mfu_counts():
    config = reading(batch_size=2)
    model, tokens = config.model, 2 * 4096
    flop = parts_by_phase(config)["step", "products"].flop
    norms = 2 * (2 * model.layers + 1) * model.dim * tokens
    attention = 4 * model.layers * model.dim * 4096 * tokens
    assert flop + norms + attention == pytest.approx(prefill_flop_per_token(model, 4096) * tokens, rel=1e-9)


def test_a_prompt_takes_its_flop_at_the_measured_rate_and_the_head_its_weights():
    config = reading()
    floors = parts_by_phase(config, flops=5e14, bandwidth=4e12)
    head = config.model.dim * config.model.vocab_size
    blocks = floors["step", "products"].flop - 2 * head
    assert floors["step", "products"].seconds == pytest.approx(blocks / 5e14 + 2 * head / 4e12)
    attention = floors["step", "attention"]
    assert attention.flop == 2 * 32 * 4096 * 4096 * 4096
    assert attention.seconds == pytest.approx(attention.flop / 5e14, rel=0.02)


def test_a_token_takes_all_weights_but_the_embedding_and_the_cache_from_memory():
    config = reading(new_tokens=101)
    floors = parts_by_phase(config, flops=5e14, bandwidth=4e12)
    model, products, attention = config.model, floors["decode", "products"], floors["decode", "attention"]
    norms = (2 * model.layers + 1) * model.dim
    assert products.bytes == 2 * (parameter_count(model) - model.vocab_size * model.dim - norms)
    assert products.seconds == pytest.approx(products.bytes / 4e12)
    assert attention.bytes == 2 * 2 * 32 * (4096 + 51) * 8 * 128 and attention.flop is None
    assert attention.seconds == pytest.approx(attention.bytes / 4e12)


def test_of_many_samples_the_flop_of_a_token_bind_it_and_each_has_its_own_cache():
    one_sample, many_samples = (
        parts_by_phase(reading(batch_size=size), flops=5e14, bandwidth=4e12) for size in (1, 512)
    )
    products = many_samples["decode", "products"]
    assert products.bytes == one_sample["decode", "products"].bytes
    assert products.seconds == pytest.approx(products.flop / 5e14)
    assert many_samples["decode", "attention"].bytes == 512 * one_sample["decode", "attention"].bytes


def test_a_short_prompt_too_reads_all_weights():
    floors = parts_by_phase(reading(prompt_length=8), flops=5e14, bandwidth=4e12)
    products = floors["step", "products"]
    assert products.seconds == pytest.approx(products.bytes / 4e12)


@pytest.mark.parametrize(("dtype", "size"), [("bfloat16", 2), ("float32", 4)])
def test_traffic_of_inference_is_counted_in_the_runs_precision(dtype, size):
    """By hand, for one layer of width 4, two heads of 2 (one key head), inner width 6, 10 words, 3 tokens."""
    model = ModelConfig(dim=4, layers=1, heads=2, kv_heads=1, ffn_dim=6, vocab_size=10)
    floors = parts_by_phase(reading(model, prompt_length=3, new_tokens=1, dtype=dtype), bandwidth=1e6)
    token_elements = 2 * 2 * 4 + 2 * 2 * 4 + 2 * (4 + 2) + 3 * 6 + 2 * 4
    assert floors["step", "elementwise"].bytes == 3 * token_elements * size
    assert floors["decode", "elementwise"].bytes == token_elements * size
    assert floors["decode", "elementwise"].seconds == pytest.approx(token_elements * size / 1e6)
    assert floors["decode", "attention"].bytes == 2 * 4 * 2 * size


def test_what_decodes_nothing_has_no_floor_of_a_token():
    assert {phase for phase, _ in parts_by_phase(reading(new_tokens=0))} == {"step"}
