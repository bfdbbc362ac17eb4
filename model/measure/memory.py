"""How much memory a run will need, counted from its configuration. Torch-free.

Of training, it counts what PyTorch allocates at the moments of a step that can need most (`_Moments`). CUDA's
own memory (`OUTSIDE`, with NCCL's some 2 GiB) and gaps between allocations come on top.

Several processes, as `model.training.parallel.split` has it: each has its part of the samples and tokens.
- FSDP2: each has its part of the parameters, gradients and states. What it has gathered comes on top: the
  embedding, norm and head at the loss, and in the backward pass a block with its gradients, which are copied
  once more, in the precision in which they are added up.
- DDP: gradients have a place from the first step on. `torch.compile` cuts a block's graph at each of DDP's
  buckets, so that nothing in it is computed again.
- Context parallelism: keys and values of all tokens are kept, and the output in parts and joined.
- Tensor parallelism: the heads and the feed-forward of each block are split, and nothing else.

Of inference, it counts the same of a prefill, which needs most in a block's feed-forward or attention. The
cache already has room for all keys and values of the run, and nothing is kept for a backward pass. A compiled
block needs less.

See docs/benchmarks.md for what was measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from model.measure.floor import tokens_at_once
from model.measure.flops import block_parameters, parameter_count
from model.record.backends import Keeps, described
from model.record.case import ELEMENT_BYTES
from model.record.config import InferenceConfig, RunConfig, TrainConfig
from model.record.sections import TaskSection

WORKSPACE = 64 * 2**20  # of cuBLAS, on Hopper
OUTSIDE = 2**29  # CUDA's own
# Of Python with torch 2.13 for CPUs: 218 MiB were resident after its import, 142 of them pages of no file.
IMPORTED = 220 * 2**20


def needed(config: RunConfig) -> int | None:
    """Bytes that a process of the run needs at most, as its task has it; None where that is not known.

    On a CPU, Python and torch themselves are in the same memory, and count; before the run needs its own they
    count twice, because another process checks its backend.
    """
    if (own := _NEEDED.get(type(config.section))) is None:
        return None
    imported = IMPORTED if config.device == "cpu" else 0
    return max(imported + own(config), 2 * imported)


def trained_memory(config: RunConfig) -> int:
    """Bytes of parameters, gradients and AdamW's two states, in each of the run's processes."""
    return 4 * _parameters(config) * ELEMENT_BYTES[config.train.dtype]


class _Moments(NamedTuple):
    """Bytes at the three moments of a step that can need most.

    Attributes:
        loss: when the loss has made its gradient, and the activations of all blocks still exist.
        block: in the backward pass of the first block, when the others' activations are gone.
        end: when the last gradients are made, those of the embedding.
    """

    loss: int
    block: int
    end: int


def peak_memory(config: RunConfig) -> int:
    """Bytes that a training step needs at most in each of the run's processes, on the device.

    An estimate: measured peaks differ by up to 10 %. On a CPU, it is what PyTorch allocates at least.
    """
    parameters = _parameters(config) * ELEMENT_BYTES[config.train.dtype]
    gradients, work, gathered = _gradients(config), _work(config), _gathered(config)
    moments = [sum(moment) for moment in zip(gradients, work, gathered, strict=True)]
    if _kept_by_attention(config) == "weights":
        moments.append(gradients.loss + gathered.block + _in_softmax_backward(config))
    states = 2 * parameters  # AdamW's
    workspace = WORKSPACE if config.device == "cuda" else 0
    return workspace + parameters + states + max(moments)


def _gradients(config: RunConfig) -> _Moments:
    """Gradients of a process's own parameters."""
    size = ELEMENT_BYTES[config.train.dtype]
    parameters, block, embedding = _parameters(config) * size, _block_bytes(config), _embedding_bytes(config)
    accumulates = config.train.accumulate > 1
    earlier = parameters if accumulates else 0  # of earlier parts of the batch
    if _is_replicated(config):  # beside the place of each: what earlier parts made, or what is just made
        waiting = block + embedding if accumulates else 0
        return _Moments(parameters + earlier, parameters + waiting, parameters + embedding)
    others = parameters - (block + embedding) // config.parallel.pieces
    return _Moments(earlier, earlier or others, parameters)


def _work(config: RunConfig) -> _Moments:
    """Activations, and what is computed from them."""
    model, train, size = config.model, config.train, ELEMENT_BYTES[config.train.dtype]
    tokens = tokens_at_once(config)
    residual, block = tokens * model.dim * size, _activations(config)
    activations = model.layers * (residual if train.checkpoint_activations else block)
    activations += (3 if config.device == "cpu" else 2) * residual  # around the last norm
    call = tokens * _held_by_attention(config, size, backward=True)  # that is in its backward
    # The logits and what is computed from them, up to the gradient of the head's input.
    logits = tokens * model.vocab_size
    loss = 12 * logits  # in float32: the logarithms, and two gradients
    if train.loss == "linear_cross_entropy":  # the gradient takes the logits' place
        loss = (logits + model.vocab_size * model.dim + 2 * tokens * model.dim) * size
    feed_forward = 2 * tokens * model.ffn_dim // config.parallel.tensor * size
    return _Moments(activations + max(loss, call), block + max(feed_forward, call), 3 * residual)


def _in_softmax_backward(config: RunConfig) -> int:
    """Bytes in the last block's backward under math, beside gradients that were there before.

    Of what comes after the attention, gradients exist and activations do not. The softmax has the gradients
    of what it makes and of what it takes, and on a GPU also the product of the first with its weights
    (`softmax_backward_cuda_out` of PyTorch).
    """
    model, train, parallel = config.model, config.train, config.parallel
    size, tokens = ELEMENT_BYTES[train.dtype], tokens_at_once(config)
    residual, queries = tokens * model.dim * size, model.heads * model.head_dim // parallel.tensor
    activations = (model.layers - 1) * (residual if train.checkpoint_activations else _activations(config))
    activations += _activations(config) - _feed_forward_activations(config)
    after = model.vocab_size * model.dim + model.dim * (3 * model.ffn_dim // parallel.tensor + queries)
    has_place = train.accumulate > 1 or _is_replicated(config)
    gradients = 0 if has_place else after * size // parallel.pieces
    flowing = residual + 4 * tokens * queries  # gradients of the residual, and in float32 of the values
    softmax = (3 if config.device == "cuda" else 2) * _attention_weights(config)
    return activations + gradients + flowing + softmax


def _is_replicated(config: RunConfig) -> bool:
    """Whether DDP has a whole copy of the model in each process."""
    return config.parallel.replicate > 1 and not config.train.cut_by(config.parallel)


def _parameters(config: RunConfig) -> int:
    """Parameters that each process holds; on average, if they do not divide."""
    model = config.model
    whole = (2 * model.vocab_size + 1) * model.dim + model.layers * _block_parameters(config)
    return whole // config.parallel.pieces


def _block_parameters(config: RunConfig) -> int:
    """Parameters of a block that its process works with: norms are whole under tensor parallelism."""
    norms = 2 * config.model.dim
    return norms + (block_parameters(config.model) - norms) // config.parallel.tensor


def _block_bytes(config: RunConfig) -> int:
    return _block_parameters(config) * ELEMENT_BYTES[config.train.dtype]


def _embedding_bytes(config: RunConfig) -> int:
    return config.model.vocab_size * config.model.dim * ELEMENT_BYTES[config.train.dtype]


def _gathered(config: RunConfig) -> _Moments:
    """Whole parameters and gradients that FSDP2 has gathered, beside a process's own."""
    parallel, train = config.parallel, config.train
    if not train.cut_by(parallel):
        return _Moments(0, 0, 0)
    block, embedding = _block_bytes(config), _embedding_bytes(config)
    # Of gradients, as they are sent.
    wide = 2 if train.reduce == "float32" and train.dtype != "float32" else 1
    tables = (1 + wide) * embedding
    blocks = 0 if parallel.reshard else config.model.layers * block
    if blocks and train.accumulate > 1:  # all but the last part keep them
        unsharded = 2 * embedding + blocks
        return _Moments(unsharded, unsharded + (1 + wide) * block, unsharded + tables)
    return _Moments(2 * embedding + blocks, embedding + (2 + wide) * block, embedding + tables)


def _activations(config: RunConfig) -> int:
    """Bytes that one block keeps for its backward pass."""
    model, train, parallel = config.model, config.train, config.parallel
    size, tokens = ELEMENT_BYTES[train.dtype], tokens_at_once(config)
    queries, keys = (heads * model.head_dim // parallel.tensor for heads in (model.heads, model.kv_heads))
    outputs = queries * (2 if parallel.context > 1 else 1)  # in parts, and joined
    # With the logarithms of the softmax's sums.
    attention = (queries + outputs + 2 * keys * parallel.context) * size + 4 * model.heads // parallel.tensor

    # What the backend keeps beside queries, keys, values and output, as far as known.
    beside, kept = 0, _kept_by_attention(config)
    if kept == "weights":
        others = 12 * queries - 2 * (queries + keys) * size + queries * size
        beside = _attention_weights(config) + tokens * others
        if train.attention_dropout:  # what was dropped, as a byte on a GPU, and the weights that are left
            beside += _attention_weights(config) * (5 if config.device == "cuda" else 8) // 4
    elif kept == "copies":  # of keys and values, one for each head of queries
        beside = tokens * 2 * (queries - keys) * size * parallel.context
    elif kept == "output":
        beside = tokens * queries * size
    return tokens * (_norm(config) + attention) + _feed_forward_activations(config) + beside


def _feed_forward_activations(config: RunConfig) -> int:
    """Bytes that the feed-forward and its norm keep of these."""
    # Inputs of products are kept in the products' precision. A compiled block multiplies gate and up again.
    train, size = config.train, ELEMENT_BYTES[config.train.dtype]
    wide = (2 if train.compile and not _is_replicated(config) else 3) * size
    wide += 1 if train.float8 != "none" else size
    return tokens_at_once(config) * (_norm(config) + wide * config.model.ffn_dim // config.parallel.tensor)


def _norm(config: RunConfig) -> int:
    """Bytes a token that a norm keeps: its input, what it makes, and on a CPU also what it scales."""
    size = ELEMENT_BYTES[config.train.dtype]
    made = 1 if config.train.float8 != "none" else size
    return config.model.dim * (size + made + (size if config.device == "cpu" else 0))


def _kept_by_attention(config: RunConfig) -> Keeps:
    """What the run's backend says that it keeps; nothing of a backend from another package."""
    own = described(config.attention)
    return own.keeps if own else ""


def _held_by_attention(config: RunConfig, size: int, backward: bool) -> int:
    """Bytes a token that a call of the run's backend holds only while it runs."""
    own = described(config.attention)
    if not own or own.holds != "float32":
        return 0
    queries = config.model.heads * config.model.head_dim // config.parallel.tensor
    shared = config.model.kv_heads < config.model.heads
    return 4 * queries * (size < 4) + 8 * queries * (backward and shared)


def _attention_weights(config: RunConfig) -> int:
    """Bytes of the weights that a block computes under math, in float32."""
    train, parallel = config.train, config.parallel
    samples = train.part_size // parallel.samples
    return 4 * samples * config.model.heads // parallel.tensor * train.sequence_length**2 // parallel.context


def inference_memory(config: RunConfig) -> int:
    """Bytes that a prefill needs at most: an estimate."""
    model, inference, size = config.model, config.inference, ELEMENT_BYTES[config.inference.dtype]
    tokens = inference.batch_size * inference.prompt_length
    queries, keys = (tokens * heads * model.head_dim for heads in (model.heads, model.kv_heads))
    parameters = parameter_count(model) * size
    cache = 2 * model.layers * inference.batch_size * inference.room * model.kv_heads * model.head_dim * size
    residual = tokens * model.dim * size
    feed_forward = 3 * residual + 3 * tokens * model.ffn_dim * size

    # Rotating the queries, in float32: themselves, their halves turned, and both together.
    turning = queries * (size + 12)
    # The kernel's call: queries, keys, values and output, and what its backend needs beside them, if known.
    call, kept = 2 * (queries + keys) * size, _kept_by_attention(config)
    if kept in ("weights", "copies") and model.kv_heads < model.heads:
        call += 2 * queries * size  # keys and values, once for each head
    if kept == "weights":  # in float32: what goes in, the mask, the scores and their softmax
        call += queries * (2 * 4 + 4 * (size < 4))
        call += inference.prompt_length**2 * (5 + 2 * 4 * inference.batch_size * model.heads)
    call += tokens * _held_by_attention(config, size, backward=False)
    if inference.in_8_bits:  # Q, K and V in 8 bits; while the queries are rounded, two of them in float32
        call += queries * (1 + 2 * 4) + 2 * keys
    attention = 2 * residual + max(turning, call)  # with the block's input and its norm

    workspace = WORKSPACE if config.device == "cuda" else 0
    return workspace + parameters + cache + max(feed_forward, attention)


_NEEDED: dict[type[TaskSection], Callable[[RunConfig], int]] = {
    TrainConfig: peak_memory,
    InferenceConfig: inference_memory,
}
