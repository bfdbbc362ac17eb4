"""One attention call, as a run asks for it and a certificate vouches for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property

FP8 = "float8_e4m3fn"  # PyTorch's name of E4M3: 4 bits of exponent, 3 of mantissa, up to 448
ELEMENT_BYTES = {FP8: 1, "bfloat16": 2, "float16": 2, "float32": 4}  # by precision


@dataclass(frozen=True)
class Case:
    """What a run needs from a backend: the shapes, precision, device and mask of one attention call.

    Attributes:
        device: "cuda" or "cpu".
        dtype: "bfloat16", "float16", "float32", or "float8_e4m3fn": numbers with a scale, forward only.
        sequence_length: of K and V, and of Q unless `queries` says otherwise.
        compile: whether torch.compile traces the model around the call.
        new_tokens: number of tokens that a run decodes after this call, each by one of `decoding`'s calls.
        decoding_dtype: the precision of those calls; None: this call's.
        queries: rows of Q; None: as many as keys. Under the causal mask they are the last of the keys' rows,
            like those of a part of a sequence. Without a mask they are new tokens, and only run forward.
        any_size: it stands for otherwise equal calls of any batch, length and number of heads.
        context: number of processes that share each sample's tokens, and make the calls of `parts`.
        dropout: probability with which each weight becomes 0, the others being divided by 1 - dropout.
        tile: queries and keys of a tile of the kernel's; None: the backend chooses.
    """

    device: str
    dtype: str
    batch: int
    sequence_length: int
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool = True
    compile: bool = False
    new_tokens: int = 0
    queries: int | None = None
    any_size: bool = False
    context: int = 1
    dropout: float = 0.0
    tile: tuple[int, int] | None = None
    decoding_dtype: str | None = None

    def __post_init__(self) -> None:
        """Make the tile hashable again, as JSON has lists for it."""
        if self.tile is not None:
            object.__setattr__(self, "tile", tuple(self.tile))

    @cache  # noqa: B019  one for each length that a run decodes at
    def decoding(self, keys: int) -> Case:
        """The call for one decoded token, whose query sees this many keys: no mask, no graph."""
        alone = replace(self.alone, dtype=self.decoding_dtype or self.dtype, compile=False)
        return replace(alone, sequence_length=keys, causal=False, queries=1)

    @property
    def alone(self) -> Case:
        """The call without tokens decoded after it."""
        return replace(self, new_tokens=0, decoding_dtype=None)

    @property
    def offset(self) -> int:
        """The position of the first query among the keys, under the causal mask."""
        return self.sequence_length - self.queries if self.causal and self.queries is not None else 0

    @property
    def trains(self) -> bool:
        """Whether gradients flow through the call."""
        return not self.fp8 and (self.queries is None or self.causal)

    @property
    def fp8(self) -> bool:
        """Whether Q, K and V have 8 bits."""
        return self.dtype == FP8

    @property
    def calls(self) -> list[Case]:
        """This call or its parts; if tokens are decoded after it, also the first and last of those calls."""
        lengths = dict.fromkeys((self.sequence_length + 1, self.sequence_length + self.new_tokens))
        after = [self.decoding(keys) for keys in lengths] if self.new_tokens else []
        return [*(self.parts or [self.alone]), *after]

    @cached_property
    def parts(self) -> list[Case]:
        """The calls of all processes that share a sample's tokens, in order; empty if one has them all.

        Each sequence is cut into two parts per process. A part's queries see all keys up to its end. The
        calls stay outside a graph, as the keys come from other processes.
        """
        count = 2 * self.context if self.context > 1 else 0
        rows = self.sequence_length // max(1, count)
        part = replace(self, context=1, compile=False)
        ends = [rows * (n + 1) for n in range(count)]
        return [replace(part, sequence_length=end, queries=rows if end > rows else None) for end in ends]
