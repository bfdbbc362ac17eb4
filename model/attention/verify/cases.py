"""Which shapes, data and ways of calling expose wrong kernels: a covering selection, not the full product.

Torch-free. Among the lengths are a single token, more than 4096, and some that are no multiple of any tile;
1, 4 and 8 query heads share a key head; head dims are 64, 128 and 256; each kind of data reveals one kind of
fault (see `data`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from model.record.case import Case

if TYPE_CHECKING:
    from model.attention import Backend, Fp8

DTYPES = {"cpu": ("float32", "bfloat16", "float16"), "cuda": ("bfloat16", "float16")}


@dataclass(frozen=True)
class Variant:
    """One call to look at.

    Attributes:
        data: the kind of numbers: a key of `data.DATA`.
        layout: how the tensors lie in memory: a key of `data.LAYOUTS`.
        seed: of the numbers.
        renewed: which of "q", "k" and "v" hold the numbers of the next seed instead.
        fp8: how the backend takes numbers of 8 bits, where the case has them.
    """

    case: Case
    data: str = "plain"
    layout: str = "contiguous"
    seed: int = 0
    renewed: str = ""
    fp8: Fp8 | None = None

    def __str__(self) -> str:
        return self.data if self.layout == "contiguous" else f"{self.data}, {self.layout}"


def _like(data: str = "plain", layout: str = "contiguous", **changes: Any) -> Variant:
    """A variant of the usual shape, with these changes. `_on` sets its device and precision."""
    usual = Case("cpu", "bfloat16", batch=2, sequence_length=256, heads=8, kv_heads=2, head_dim=128)
    return Variant(replace(usual, **changes), data, layout)


def _on(device: str, variant: Variant, dtype: str | None = None) -> Variant:
    """The variant on this device, and in this precision instead of its own."""
    return replace(variant, case=replace(variant.case, device=device, dtype=dtype or variant.case.dtype))


_COVER = (
    _like("needle"),
    _like("plain", "fused qkv"),
    _like("large logits", batch=1, sequence_length=384, kv_heads=1),
    _like("masked gradient", "heads first", batch=1, sequence_length=384, kv_heads=1),
    _like("plain", sequence_length=1, heads=4, kv_heads=1, head_dim=64),
    _like("plain", batch=3, sequence_length=63, kv_heads=8, head_dim=64, causal=False),
    _like("plain", sequence_length=257, head_dim=64),
    _like("plain", "head dim strided", batch=1, sequence_length=129, heads=4, kv_heads=1),
    _like("huge logits", sequence_length=190, heads=4, kv_heads=4, causal=False),
    _like("plain", "sliced", sequence_length=190, heads=4, kv_heads=4, causal=False),
    _like("repeated", "expanded", batch=3, sequence_length=130, heads=4, kv_heads=1, head_dim=64),
    _like("plain", batch=1, sequence_length=65, head_dim=256),
    _like("needle", batch=1, sequence_length=1000, heads=2, kv_heads=1, head_dim=64),
    _like("needle", batch=1, sequence_length=777, heads=1, kv_heads=1, causal=False),
    _like("plain", batch=5, sequence_length=64, heads=12, kv_heads=3, head_dim=64),
    _like("needle", batch=1, sequence_length=1024, heads=2, kv_heads=1, head_dim=64),
    _like("needle", sequence_length=300, queries=100, head_dim=64),
    _like("large logits", batch=1, sequence_length=257, queries=64, heads=4, kv_heads=1),
    _like("plain", sequence_length=260, context=2, heads=4, kv_heads=4),
)
# Sums that grow over many tiles show what is added up in 16 bits; past 4096 tokens other limits show too.
# And a shape that is round and large in everything, as those of runs are.
_LONG = {
    "cpu": [
        _like("offset", batch=1, sequence_length=4160, heads=1, kv_heads=1, head_dim=64),
        _like("needle", batch=4, sequence_length=512, heads=9, kv_heads=3, head_dim=64),
    ],
    "cuda": [
        _like("needle", batch=4, sequence_length=512, heads=12, kv_heads=3),
        _like("offset", batch=1, sequence_length=8320, heads=2, kv_heads=1),
        _like("offset", batch=1, sequence_length=4103, heads=2, kv_heads=1, head_dim=64, causal=False),
    ],
}
# For backends that compile for seconds at each new head dim, precision or mask: few of those, and all kinds
# of data at one shape.
_COVER_COMPILED = (
    _like("needle"),
    _like("large logits"),
    _like("huge logits"),
    _like("plain", "fused qkv"),
    _like("masked gradient", "heads first"),
    _like("repeated", "expanded"),
    _like("plain", batch=1, sequence_length=1, kv_heads=1),
    _like("needle", batch=1, sequence_length=777, kv_heads=8),
    _like("plain", sequence_length=257, causal=False),
    _like("plain", sequence_length=257, head_dim=64),
    _like("plain", sequence_length=257, head_dim=256),
    _like("plain", dtype="float16", sequence_length=257, head_dim=64, causal=False),
    _like("offset", batch=1, sequence_length=8320, heads=2, kv_heads=1),
    _like("needle", batch=5, sequence_length=512, heads=16, kv_heads=4),
    _like("needle", sequence_length=384, queries=128),
    _like("needle", sequence_length=300, queries=100),
)


def of_8_bits(backend: Backend, variants: list[Variant]) -> list[Variant]:
    """The variants as the backend takes them, where they have numbers of 8 bits."""
    return [replace(x, fp8=backend.fp8) if x.case.fp8 else x for x in variants]


def around_fp8(case: Case) -> list[Variant]:
    """The gate's cases for numbers of 8 bits: the run's own shape, then what breaks kernels near it.

    `ones` and the needle also have far more keys than queries, up to LONGEST, where a sum that is not kept in
    float32 shows.
    """
    small = replace(case, batch=2, sequence_length=_near(case, 256), heads=_few(case), kv_heads=_few_kv(case))
    odd = replace(small, sequence_length=min(case.sequence_length + 1, 257))
    one = replace(small, batch=1, heads=small.heads // small.kv_heads, kv_heads=1)
    long = replace(one, sequence_length=_near(case, 8320))
    ways = dict.fromkeys((case.causal, False))
    few = [replace(one, queries=FEW, causal=causal) for causal in ways]
    return [
        Variant(case),
        Variant(small, "needle"),
        Variant(small, "large logits", "fused qkv"),
        Variant(small, "huge logits"),
        Variant(small, "outliers", "heads first"),
        Variant(odd),
        Variant(long, "offset"),
        *(
            Variant(replace(x, sequence_length=keys), kind)
            for x in few
            for kind, keys in [*(("ones", keys) for keys in (FEW, 4096, LONGEST)), ("needle", LONGEST)]
        ),
    ]


FEW = 128  # queries
LONGEST = 131_072  # keys


def covering(device: str, compiled: bool) -> list[Variant]:
    """The variants for a certificate of all that a backend supports; the backend may decline some."""
    if compiled:
        return [_on(device, variant) for variant in _COVER_COMPILED]
    selected = [_on(device, variant, dtype) for dtype in DTYPES[device] for variant in _COVER]
    return selected + [
        _on(device, variant, dtype) for dtype in DTYPES[device][:2] for variant in _LONG[device]
    ]


def around(case: Case, compiled: bool) -> list[Variant]:
    """The gate's cases: the run's own shape, then small ones that break kernels, in its precision and mask.

    If each shape compiles for seconds, there are only two of them. The layouts of the run's own shape share
    its results in float64.
    """
    small = replace(case, batch=2, sequence_length=_near(case, 256), heads=_few(case), kv_heads=_few_kv(case))
    # A length that, like its parts, is no multiple of a tile; each at most a row longer than the run's.
    parts = len(case.parts) or 1
    odd_length = parts * min(case.sequence_length // parts + 1, 257 // parts | 1)
    odd = replace(small, sequence_length=odd_length)
    many = replace(small, batch=1, heads=small.heads // small.kv_heads, kv_heads=1)
    long = replace(many, sequence_length=_near(case, 4096))
    selected = [
        Variant(case),
        Variant(small, "needle"),
        Variant(small, "large logits", "fused qkv"),
        Variant(small, "huge logits"),
        Variant(small, "masked gradient", "heads first"),
        Variant(case, "plain", "fused qkv"),
        Variant(case, "plain", "heads first"),
    ]
    return selected if compiled else [*selected, Variant(odd), Variant(long, "offset")]


def shared(case: Case) -> Case:
    """The case of the certificate shared by all calls that differ only in batch, length and number of heads.

    Which kernel runs depends on the precision, the head dim, the mask, and how many heads share a key head (a
    single key head is a case of its own). It may also depend on the length: `sizes` has short and long ones.
    """
    batch, length, kv_heads = {"cpu": (2, 256, 2), "cuda": (4, 2048, 8)}[case.device]
    kv_heads = 1 if case.kv_heads == 1 else kv_heads
    heads = kv_heads * (case.heads // case.kv_heads)
    return replace(case, batch=batch, sequence_length=length, heads=heads, kv_heads=kv_heads, any_size=True)


def sizes(case: Case, compiled: bool) -> list[Variant]:
    """The sizes that a shared certificate adds to those `around` a call: multiples of tiles, and others.

    PyTorch's CPU kernel takes queries in blocks of 32, from 192 tokens on of 64, and from 768 on of 256.
    On a GPU `custom` has larger blocks where sequences are long and heads are many.
    """
    few = replace(case, heads=_few(case), kv_heads=_few_kv(case))
    one = replace(few, batch=1, heads=few.heads // few.kv_heads, kv_heads=1)
    long = {"cpu": 4160, "cuda": 8320}[case.device]
    selected = [Variant(replace(few, batch=1, sequence_length=777), "needle")]
    more = [
        Variant(replace(few, batch=5, sequence_length=64)),
        Variant(replace(few, batch=3, sequence_length=129), "needle"),
        Variant(replace(few, batch=1, sequence_length=1024), "needle"),
        Variant(replace(one, sequence_length=long), "offset"),
    ]
    if case.device == "cuda":
        more.append(Variant(replace(case, batch=1, sequence_length=4352)))
    return selected if compiled else [*selected, *more]


def decoding(case: Case) -> list[Variant]:
    """The gate's cases for a run that decodes: its first and last call, and some between.

    K and V lie in a cache, as in the run. How kernels split the keys among blocks depends on their number, so
    lengths around a multiple of a tile are included if the run has them.
    """
    if not case.new_tokens:
        return []
    first, last = case.sequence_length + 1, case.sequence_length + case.new_tokens
    tile = -(-first // 128) * 128
    lengths = [n for n in dict.fromkeys((last, first, first + 1, tile, tile + 1)) if first <= n <= last]
    selected = [Variant(case.decoding(keys), "plain", "cached", seed=n) for n, keys in enumerate(lengths)]
    kinds = ("needle", "large logits", "huge logits", "offset")
    return selected + [Variant(case.decoding(last), kind, "cached") for kind in kinds]


def elsewhere(dtype: str, allowed: list[Variant], own: Case | None) -> list[Case]:
    """Shapes at which to try data whose own shape a backend refuses, the cheapest first.

    Args:
        allowed: what it takes.
        own: the run's case, of which shorter sequences are tried too.
    """
    selected = [variant.case for variant in allowed if variant.case.dtype == dtype]
    if own:
        few = replace(own, batch=1, heads=_few(own), kv_heads=_few_kv(own))
        selected += [replace(x, sequence_length=_near(own, n)) for x in (few, own) for n in (512, 1024, 2048)]
    return sorted(selected, key=lambda case: case.batch * case.heads * case.sequence_length**2)


def base(device: str) -> list[Case]:
    """Small shapes to try habits, kernels and the model at: the first that a backend supports is taken."""
    length = 256 if device == "cuda" else 128
    return [
        Case(device, dtype, batch=2, sequence_length=length, heads=4, kv_heads=2, head_dim=head_dim)
        for dtype in DTYPES[device][:2]
        for head_dim in (128, 64, 16)
    ]


def busy(device: str) -> Case:
    """A shape that keeps a whole GPU busy: only then do its blocks finish in a different order each time."""
    if device == "cuda":
        return Case(device, "bfloat16", batch=1, sequence_length=4096, heads=32, kv_heads=8, head_dim=128)
    return base(device)[0]


def _near(case: Case, length: int) -> int:
    """About this length, but no longer than the run's sequence: a gate costs no more than the first step.

    If processes share the tokens, a length of as many parts.
    """
    parts = len(case.parts) or 1
    return parts * min(case.sequence_length // parts, max(1, length // parts))


def _few_kv(case: Case) -> int:
    """Two key heads are enough to show heads that are mixed up."""
    return min(case.kv_heads, 2)


def _few(case: Case) -> int:
    return _few_kv(case) * (case.heads // case.kv_heads)
