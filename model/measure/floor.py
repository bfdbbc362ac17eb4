"""The least time that a step can take on a device whose rates were measured: counted work over rates.

Of a training step:

    floor = sum over products of FLOP / (measured rate of that shape and pass)
          + attention FLOP / (rate of all products together)
          + (bytes of loss, optimizer and elementwise operations) / (measured memory bandwidth)

This assumes one stream of kernels, which computes or moves data but not both at once. What is not counted can
only make a real step slower: launches, idling, copies, recomputed activations, anything read twice.

If a run has several processes, each with a device, the work is that of one process; all have equal shares.
Communication is not counted.

Of a prefill, and of a decoded token, it is the roofline (Williams et al. 2009, CACM 52(4)) of each linear
layer, and of all else what binds it, as Pope et al. 2022 count inference ("Efficiently Scaling Transformer
Inference", arXiv:2211.05102, section 2):

    floor = sum over products of max(FLOP / (measured rate of that shape), weights / (measured bandwidth))
          + attention: of a prompt FLOP / (rate of all products together), of a token K and V / bandwidth
          + (bytes of elementwise operations) / bandwidth

A prompt's products are bound by their FLOP. A decoded token's are bound by memory: for one token of each
sample, all weights are read, and all keys and values in the cache. All is assumed to come from memory:
weights that fit into a device's caches can come faster.

Torch-free. N tokens of a step, B samples of T tokens, C width (dim), Q and K widths of all query and of all
key heads, F inner width, V vocabulary, L layers, P parameters, each as one process has them; e bytes of an
element.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from model.record.case import ELEMENT_BYTES
from model.record.config import ModelConfig, RunConfig
from model.record.speed import PASSES, Ceilings, FloorPart, Pass

TrafficPart = Literal["attention", "loss", "optimizer", "elementwise"]


@dataclass(frozen=True)
class Product:
    """A linear layer: (N, inputs) by a weight (outputs, inputs), `count` of them in the model."""

    name: str
    inputs: int
    outputs: int
    count: int

    def flop(self, tokens: int) -> int:
        """FLOP of one pass of a step over all of them, 2 N inputs outputs each. Every pass has as many."""
        return 2 * tokens * self.inputs * self.outputs * self.count


def products(model: ModelConfig, tensor: int = 1) -> list[Product]:
    """The linear layers: each has a forward product, and one for each gradient: by input, by weight.

    Args:
        tensor: processes that share the heads and the feed-forward of each block, but not the output head.
    """
    dim, ffn, layers = model.dim, model.ffn_dim // tensor, model.layers
    queries, keys = (heads * model.head_dim // tensor for heads in (model.heads, model.kv_heads))
    return [
        Product("query", dim, queries, layers),
        Product("key", dim, keys, layers),
        Product("value", dim, keys, layers),
        Product("out", queries, dim, layers),
        Product("gate", dim, ffn, layers),
        Product("up", dim, ffn, layers),
        Product("down", ffn, dim, layers),
        Product("head", dim, model.vocab_size, 1),
    ]


def shapes(model: ModelConfig, tensor: int = 1) -> list[tuple[int, int]]:
    """Inputs and outputs of the layers, each pair once; `tensor` as for `products`."""
    return list(dict.fromkeys((product.inputs, product.outputs) for product in products(model, tensor)))


def tokens(config: RunConfig) -> int:
    """N: tokens of a step, of one process."""
    parts = config.parallel.samples * config.parallel.context
    return config.section.batch_size * config.section.sequence_length // parts


def tokens_at_once(config: RunConfig) -> int:
    """Tokens that go through the model together; rates are measured at the shapes of their products."""
    return tokens(config) // config.train.accumulate


def passes(config: RunConfig) -> tuple[Pass, ...]:
    """The passes of a step: a prompt has only the forward pass."""
    return PASSES if config.section.trains else ("forward",)


def attention_flop(config: RunConfig) -> int:
    """FLOP of causal attention in a step: 7 N T Q in each layer.

    Forward 2 N T Q: two products, halved by the mask. Backward 2.5 times that: five products, since scores
    are not kept (Dao et al. 2022, arXiv:2205.14135). The table `kernels` counts the same; MFU counts more.
    """
    model, length = config.model, config.section.sequence_length
    queries = model.heads * model.head_dim // config.parallel.tensor
    factor = 7 if config.section.trains else 2
    return factor * model.layers * queries * tokens(config) * length


def optimizer_bytes(config: RunConfig) -> int:
    """Bytes of AdamW and of the gradients' norm: 8 P e.

    The update reads parameter, gradient and two moments and writes all but the gradient; the norm has to read
    every gradient before that.
    """
    model, parallel = config.model, config.parallel
    layers = products(model, parallel.tensor)
    linear = sum(layer.inputs * layer.outputs * layer.count for layer in layers)
    others = (model.vocab_size + 2 * model.layers + 1) * model.dim  # embedding and norms
    held = (linear + others) // (parallel.shard * parallel.context)  # on average, if they do not divide
    return 8 * held * ELEMENT_BYTES[config.train.dtype]


def loss_bytes(config: RunConfig) -> int:
    """Bytes of the cross-entropy: 2 N V e, which is logits read once and their gradient written once."""
    return 2 * tokens(config) * config.model.vocab_size * ELEMENT_BYTES[config.train.dtype]


def elementwise_bytes(config: RunConfig) -> int:
    """Bytes of everything else in training, each operation once over what it reads and writes.

    - 2 L + 1 norms, 5 N C e: forward reads x and writes y; backward reads x and dy and writes dx;
    - 2 L residuals, 3 N C e, joined to the norm behind: forward reads the branch and writes the sum, backward
      reads the gradient that comes past the branch;
    - rotary positions, 4 N (Q + K) e a layer: queries and keys read and written, forward and backward;
    - SwiGLU, 8 N F e a layer: forward reads gate and up and writes one; backward reads three and writes two;
    - the embedding, 3 N C e + V C e: rows read and written, their gradient read, all of the weight's written.
    """
    model, count, tensor = config.model, tokens(config), config.parallel.tensor
    heads = model.head_dim * (model.heads + model.kv_heads) // tensor
    norms = 5 * (2 * model.layers + 1) * model.dim
    residuals = 3 * 2 * model.layers * model.dim
    rotary, swiglu = 4 * model.layers * heads, 8 * model.layers * model.ffn_dim // tensor
    elements = count * (norms + residuals + rotary + swiglu + 3 * model.dim) + model.vocab_size * model.dim
    return elements * ELEMENT_BYTES[config.train.dtype]


def floor(config: RunConfig, measured: Ceilings) -> list[FloorPart]:
    """The parts of the least time of a step; if it decodes, also of a token with the median number of keys.

    Args:
        measured: in the precision of the run's products.

    Raises:
        KeyError: the rate of a shape was not measured.
    """
    return _training_floor(config, measured) if config.section.trains else _inference_floor(config, measured)


def _training_floor(config: RunConfig, measured: Ceilings) -> list[FloorPart]:
    rates = {(timing.step, timing.inputs, timing.outputs): timing.flops for timing in measured.products}
    flop, seconds = 0, 0.0  # of all products
    for product in products(config.model, config.parallel.tensor):
        own_flop = product.flop(tokens(config))
        flop += len(PASSES) * own_flop
        seconds += sum(own_flop / rates[step, product.inputs, product.outputs] for step in PASSES)
    attention = attention_flop(config)
    return [
        FloorPart(part="products", flop=flop, seconds=seconds),
        FloorPart(part="attention", flop=attention, seconds=attention * seconds / flop),
        _traffic("loss", loss_bytes(config), measured),
        _traffic("optimizer", optimizer_bytes(config), measured),
        _traffic("elementwise", elementwise_bytes(config), measured),
    ]


def _inference_floor(config: RunConfig, measured: Ceilings) -> list[FloorPart]:
    prompt, attention = _forward_products(config, measured, tokens(config)), attention_flop(config)
    parts = [
        prompt,
        FloorPart(part="attention", flop=attention, seconds=attention * prompt.seconds / (prompt.flop or 1)),
        _traffic("elementwise", _forward_elementwise_bytes(config, tokens(config)), measured),
    ]
    if config.inference.new_tokens:
        batch = config.inference.batch_size
        decoded = [
            _forward_products(config, measured, batch),
            _traffic("attention", cache_bytes(config, config.inference.median_keys), measured),
            _traffic("elementwise", _forward_elementwise_bytes(config, batch), measured),
        ]
        parts += [part.model_copy(update={"phase": "decode"}) for part in decoded]
    return parts


def _traffic(part: TrafficPart, size: int, measured: Ceilings) -> FloorPart:
    """A part that takes as long as the device needs to read and write its bytes."""
    return FloorPart(part=part, bytes=size, seconds=size / measured.bandwidth)


def _forward_products(config: RunConfig, measured: Ceilings, count: int) -> FloorPart:
    """All linear layers for this many tokens; the head takes only the last of each sample.

    A product of fewer tokens than were measured together is not faster.
    """
    forward = [timing for timing in measured.products if timing.step == "forward"]
    rates = {(timing.inputs, timing.outputs): timing.flops for timing in forward}
    flop, size, seconds = 0, 0, 0.0
    for product in products(config.model):
        own_flop = product.flop(config.inference.batch_size if product.name == "head" else count)
        weights = product.inputs * product.outputs * product.count * ELEMENT_BYTES[config.inference.dtype]
        flop, size = flop + own_flop, size + weights
        seconds += max(own_flop / rates[product.inputs, product.outputs], weights / measured.bandwidth)
    return FloorPart(part="products", flop=flop, bytes=size, seconds=seconds)


def cache_bytes(config: RunConfig, keys: int) -> int:
    """Bytes of this many keys and values of each sample, in all layers: 2 L B keys K e."""
    model, asked = config.model, config.inference
    width = model.kv_heads * model.head_dim
    return 2 * model.layers * asked.batch_size * keys * width * ELEMENT_BYTES[asked.dtype]


def _forward_elementwise_bytes(config: RunConfig, count: int) -> int:
    """Bytes of everything else for N tokens: each operation once over what it reads and writes.

    2 L norms, 2 N C e; 2 L residuals joined to the norm behind, 2 N C e; rotary positions, 2 N (Q + K) e a
    layer; SwiGLU, 3 N F e a layer; the embedding's rows, 2 N C e: the forward share of training's.
    """
    model = config.model
    heads = model.head_dim * (model.heads + model.kv_heads)
    elements = model.layers * (8 * model.dim + 2 * heads + 3 * model.ffn_dim) + 2 * model.dim
    return count * elements * ELEMENT_BYTES[config.inference.dtype]
