"""The least time of a prefill, and of a decoded token, on a device whose rates were measured. Torch-free.

The roofline (Williams et al. 2009, CACM 52(4)) of each linear layer, and of all else what binds it, as Pope
et al. 2022 count inference ("Efficiently Scaling Transformer Inference", arXiv:2211.05102, section 2):

    floor = sum over products of max(FLOP / (measured rate of that shape), weights / (measured bandwidth))
          + attention: of a prompt FLOP / (rate of all products together), of a token K and V / bandwidth
          + (bytes of elementwise operations) / bandwidth

A prompt's products are bound by their FLOP. A decoded token's are bound by memory: for one token of each
sample, all weights are read, and all keys and values in the cache. All is assumed to come from memory:
weights that fit into a device's caches can come faster. As in `model.measure.floor`, whose letters are used
here, what is not counted can only make the device slower.
"""

from __future__ import annotations

from model.measure.floor import ELEMENT_BYTES, attention_flop, products, tokens
from model.record.config import RunConfig
from model.record.node import Ceilings, FloorPart


def floor(config: RunConfig, measured: Ceilings) -> list[FloorPart]:
    """The parts of both; of a token with the median number of keys, if any is decoded.

    Raises:
        KeyError: the rate of a shape was not measured.
    """
    prompt, attention = _products(config, measured, tokens(config)), attention_flop(config)
    found = [
        prompt,
        FloorPart(part="attention", flop=attention, seconds=attention * prompt.seconds / (prompt.flop or 1)),
        _elementwise(config, measured, tokens(config)),
    ]
    if config.inference.new_tokens:
        batch, kept = config.inference.batch_size, cache_bytes(config, config.inference.median_keys)
        decoded = [
            _products(config, measured, batch),
            FloorPart(part="attention", bytes=kept, seconds=kept / measured.bandwidth),
            _elementwise(config, measured, batch),
        ]
        found += [part.model_copy(update={"phase": "decode"}) for part in decoded]
    return found


def _products(config: RunConfig, measured: Ceilings, count: int) -> FloorPart:
    """All linear layers for this many tokens; the head takes only the last of each sample.

    A product of fewer tokens than were measured together is not faster.
    """
    rates = {(each.inputs, each.outputs): each.flops for each in measured.products if each.step == "forward"}
    flop, size, seconds = 0, 0, 0.0
    for each in products(config.model):
        mine = each.flop(config.inference.batch_size if each.name == "head" else count)
        weights = each.inputs * each.outputs * each.count * ELEMENT_BYTES[config.inference.dtype]
        flop, size = flop + mine, size + weights
        seconds += max(mine / rates[each.inputs, each.outputs], weights / measured.bandwidth)
    return FloorPart(part="products", flop=flop, bytes=size, seconds=seconds)


def cache_bytes(config: RunConfig, keys: int) -> int:
    """Bytes of this many keys and values of each sample, in all layers: 2 L B keys K e."""
    model, asked = config.model, config.inference
    width = model.kv_heads * model.head_dim
    return 2 * model.layers * asked.batch_size * keys * width * ELEMENT_BYTES[asked.dtype]


def _elementwise(config: RunConfig, measured: Ceilings, count: int) -> FloorPart:
    """Everything else for N tokens: each operation once over what it reads and writes.

    2 L norms, 2 N C e; 2 L residuals joined to the norm behind, 2 N C e; rotary positions, 2 N (Q + K) e a
    layer; SwiGLU, 3 N F e a layer; the embedding's rows, 2 N C e: the forward share of training's.
    """
    model = config.model
    heads = model.head_dim * (model.heads + model.kv_heads)
    elements = model.layers * (8 * model.dim + 2 * heads + 3 * model.ffn_dim) + 2 * model.dim
    size = count * elements * ELEMENT_BYTES[config.inference.dtype]
    return FloorPart(part="elementwise", bytes=size, seconds=size / measured.bandwidth)
