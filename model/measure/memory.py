"""How much GPU memory a run will need, counted from its configuration. Torch-free.

It counts what PyTorch allocates at the moments of a step that can need most: when the loss has made its
gradient and all activations still exist, and when the last gradients are made. CUDA's own memory (about
0.5 GiB) and gaps between allocations come on top.

If processes share one copy's parameters (FSDP2), each has its part of the parameters, gradients and states.
What it has gathered comes on top: the embedding, norm and head at the loss, and in the backward pass a block
with its gradients, which are copied once more to be added up.

See docs/benchmarks.md for what was measured.
"""

from __future__ import annotations

from model.config import RunConfig
from model.measure.floor import ELEMENT_BYTES, tokens_at_once
from model.measure.flops import block_parameters, parameter_count

WORKSPACE = 64 * 2**20  # of cuBLAS, on Hopper


def is_counted(config: RunConfig) -> bool:
    """Whether the memory of each process is known: there is one process, or all share the parameters."""
    return config.processes == (config.parallel.shard if config.task == "training" else 1)


def peak_memory(config: RunConfig) -> int:
    """Bytes that a training step needs at most in each process, of a run that `is_counted`.

    An estimate: measured peaks differ by up to 10 %.
    """
    model, train, size = config.model, config.train, ELEMENT_BYTES[config.train.dtype]
    tokens = tokens_at_once(config)
    residual = tokens * model.dim * size
    pieces = config.parallel.pieces
    parameters = parameter_count(model) * size // pieces
    held = 3 * parameters  # themselves and AdamW's two states
    block, one = block_parameters(model) * size, _activations(config)
    kept = model.layers * (residual if train.checkpoint_activations else one) + 2 * residual
    embedding = model.vocab_size * model.dim * size
    added_up = parameters if train.accumulate > 1 else 0  # gradients of earlier parts
    at_loss = held + added_up + kept + _loss(config, tokens, size)
    made = parameters - (block + embedding) // pieces
    at_first_block = held + made + one + 2 * tokens * model.ffn_dim * size
    at_end = held + parameters + 3 * residual
    gathered = _gathered(config, block, embedding)
    return WORKSPACE + max(map(sum, zip((at_loss, at_first_block, at_end), gathered, strict=True)))


def _gathered(config: RunConfig, block: int, embedding: int) -> tuple[int, int, int]:
    """Bytes of whole parameters and gradients beside a process's own: at the loss, first block and end."""
    parallel, tables = config.parallel, 2 * embedding
    if parallel.pieces == 1:
        return 0, 0, 0
    blocks = 0 if parallel.reshard else config.model.layers * block
    if blocks and config.train.accumulate > 1:  # all but the last part keep them
        tables_and_blocks = tables + blocks
        return tables_and_blocks, tables_and_blocks + 2 * block, tables_and_blocks + tables
    return tables + blocks, embedding + 3 * block, embedding + tables


def _activations(config: RunConfig) -> int:
    """Bytes that one block keeps for its backward pass."""
    model, train, size = config.model, config.train, ELEMENT_BYTES[config.train.dtype]
    tokens = tokens_at_once(config)
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    attention = (2 * queries + 2 * keys) * size + 4 * model.heads  # with the logarithms of the softmax's sums
    # Both norms keep their input. Inputs of products are kept in the products' precision. A compiled block
    # multiplies gate and up again.
    rounded = 1 if train.float8 != "none" else size
    wide = (2 if train.compile else 3) * size + rounded
    elements = 2 * model.dim * (size + rounded) + attention + wide * model.ffn_dim
    return tokens * elements + _attention_extra(config)


def _attention_extra(config: RunConfig) -> int:
    """Bytes that a backend keeps beside queries, keys, values and output; 0 where none is known."""
    model, train, size = config.model, config.train, ELEMENT_BYTES[config.train.dtype]
    tokens = tokens_at_once(config)
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    repeated = 2 * (queries - keys) * size  # keys and values, once for each head of queries
    if config.attention == "math":  # in float32, with every weight
        weights = 4 * train.part_size * model.heads * train.sequence_length**2
        return weights + tokens * (12 * queries - 2 * (queries + keys) * size + queries * size * (size == 4))
    return tokens * {"efficient": repeated, "custom": queries * size}.get(config.attention, 0)


def _loss(config: RunConfig, tokens: int, size: int) -> int:
    """Bytes of the logits and of what is computed from them, up to the gradient of the head's input."""
    logits, head = tokens * config.model.vocab_size, config.model.vocab_size * config.model.dim
    if config.train.loss == "linear_cross_entropy":  # the gradient takes the logits' place
        return (logits + head + 2 * tokens * config.model.dim) * size
    return 12 * logits  # in float32: the logarithms, and two gradients
