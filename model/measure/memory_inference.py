"""How much memory a run of inference will need, counted from its configuration. Torch-free.

Like `model.measure.memory`, it counts what PyTorch allocates when it needs most: during a prefill, in a
block's feed-forward or attention. The cache already has room for all keys and values of the run, and nothing
is kept for a backward pass. A compiled block needs less.
"""

from __future__ import annotations

from model.measure.floor import ELEMENT_BYTES
from model.measure.flops import parameter_count
from model.measure.memory import IMPORTED, WORKSPACE, peak_memory
from model.record.config import RunConfig


def needed(config: RunConfig) -> int | None:
    """Bytes that a process of the run needs at most, as its task has it; None of attention alone.

    On a CPU, Python and torch themselves are in the same memory, and count; before the run needs its own they
    count twice, because another process checks its backend.
    """
    if config.task == "attention":
        return None
    imported = IMPORTED if config.device == "cpu" else 0
    own = peak_memory(config) if config.task == "training" else inference_memory(config)
    return max(imported + own, 2 * imported)


def inference_memory(config: RunConfig) -> int:
    """Bytes that a prefill needs at most: an estimate."""
    model, asked, size = config.model, config.inference, ELEMENT_BYTES[config.inference.dtype]
    tokens = asked.batch_size * asked.prompt_length
    parameters = parameter_count(model) * size
    cache = 2 * model.layers * asked.batch_size * asked.room * model.kv_heads * model.head_dim * size
    residual = tokens * model.dim * size
    feed_forward = 3 * residual + 3 * tokens * model.ffn_dim * size
    workspace = WORKSPACE if config.device == "cuda" else 0
    return workspace + parameters + cache + max(feed_forward, 2 * residual + _attention(config))


def _attention(config: RunConfig) -> int:
    """Bytes besides the block's input and its norm: for rotating the queries, or for the kernel's call."""
    model, asked, size = config.model, config.inference, ELEMENT_BYTES[config.inference.dtype]
    tokens = asked.batch_size * asked.prompt_length
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    turning = tokens * queries * (size + 12)  # in float32: itself, its halves turned, and both together
    given_and_output = tokens * (2 * queries + 2 * keys) * size
    return max(turning, given_and_output + _of_backend(config))


def _of_backend(config: RunConfig) -> int:
    """Bytes that a backend's forward needs beside queries, keys, values and output; 0 where none is known."""
    model, asked, size = config.model, config.inference, ELEMENT_BYTES[config.inference.dtype]
    queries = asked.batch_size * asked.prompt_length * model.heads * model.head_dim
    repeated = 2 * queries * size * (model.kv_heads < model.heads)  # keys and values, once for each head
    if config.attention == "math":  # in float32: what goes in, the mask, the scores and their softmax
        given = queries * (2 * 4 + 4 * (size < 4))
        return repeated + given + asked.prompt_length**2 * (5 + 2 * 4 * asked.batch_size * model.heads)
    return repeated if config.attention == "efficient" else 0
