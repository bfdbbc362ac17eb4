"""Which shapes, data and ways of calling break wrong kernels: a covering selection, not the full product.

Torch-free. Lengths are no multiples of any tile, one token, and more than 4096; 1, 4 and 8 query heads share
a key head; head dims are 64, 128 and 256; the data brings out one kind of fault each (see `data`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from model.attention import Case

DTYPES = {"cpu": ("float32", "bfloat16", "float16"), "cuda": ("bfloat16", "float16")}
Shape = tuple[int, int, int, int, int, bool]  # batch, length, heads, key heads, head dim, causal


@dataclass(frozen=True)
class Variant:
    """One call to look at.

    Attributes:
        data: what the numbers are like: a function's name in `data.DATA`.
        layout: how the tensors lie in memory: one in `data.LAYOUTS`.
    """

    case: Case
    data: str = "plain"
    layout: str = "contiguous"
    seed: int = 0

    def __str__(self) -> str:
        return self.data if self.layout == "contiguous" else f"{self.data}, {self.layout}"


_COVER: tuple[tuple[Shape, str, str], ...] = (
    ((2, 256, 8, 2, 128, True), "needle", "contiguous"),
    ((2, 256, 8, 2, 128, True), "plain", "fused qkv"),
    ((1, 384, 8, 1, 128, True), "large logits", "contiguous"),
    ((1, 384, 8, 1, 128, True), "masked gradient", "heads first"),
    ((2, 1, 4, 1, 64, True), "plain", "contiguous"),
    ((3, 63, 8, 8, 64, False), "plain", "contiguous"),
    ((2, 257, 8, 2, 64, True), "plain", "contiguous"),
    ((1, 129, 4, 1, 128, True), "plain", "head dim strided"),
    ((2, 190, 4, 4, 128, False), "huge logits", "contiguous"),
    ((2, 190, 4, 4, 128, False), "plain", "sliced"),
    ((3, 130, 4, 1, 64, True), "repeated", "expanded"),
    ((1, 65, 8, 2, 256, True), "plain", "contiguous"),
    ((1, 1000, 2, 1, 64, True), "needle", "contiguous"),
    ((1, 777, 1, 1, 128, False), "needle", "contiguous"),
)
# Where each new head dim, precision or mask is compiled for seconds: few of them, and all data at one shape.
_COVER_COMPILED: tuple[tuple[Shape, str, str], ...] = (
    *(((2, 256, 8, 2, 128, True), kind, "contiguous") for kind in ("needle", "large logits", "huge logits")),
    ((2, 256, 8, 2, 128, True), "plain", "fused qkv"),
    ((2, 256, 8, 2, 128, True), "masked gradient", "heads first"),
    ((2, 256, 8, 2, 128, True), "repeated", "expanded"),
    ((1, 1, 8, 1, 128, True), "plain", "contiguous"),
    ((1, 777, 8, 8, 128, True), "needle", "contiguous"),
)
_OTHERWISE_COMPILED: dict[str, tuple[Shape, ...]] = {
    "bfloat16": ((2, 257, 8, 2, 128, False), (2, 257, 8, 2, 64, True), (2, 257, 8, 2, 256, True)),
    "float16": ((2, 257, 8, 2, 64, False),),
}
# Many tiles of sums that grow all along: what is added up in 16 bits shows. Past 4096, past 32-bit habits.
_LONG = {
    "cpu": ((1, 4160, 1, 1, 64, True),),
    "cuda": ((1, 8320, 2, 1, 128, True), (1, 4103, 2, 1, 64, False)),
}
_LONG_COMPILED = ((1, 8320, 2, 1, 128, True),)


def covering(device: str, compiled: bool) -> list[Variant]:
    """What a certificate for all that a backend supports looks at; it leaves out what it says it cannot."""
    if compiled:
        found = [_variant(device, "bfloat16", *each) for each in _COVER_COMPILED]
        for dtype, shapes in _OTHERWISE_COMPILED.items():
            found += [_variant(device, dtype, shape, "plain", "contiguous") for shape in shapes]
        return found + [
            _variant(device, "bfloat16", shape, "offset", "contiguous") for shape in _LONG_COMPILED
        ]
    found = [_variant(device, dtype, *each) for dtype in DTYPES[device] for each in _COVER]
    long = DTYPES[device][:2] if device == "cpu" else DTYPES[device]
    return found + [
        _variant(device, dtype, shape, "offset", "contiguous") for dtype in long for shape in _LONG[device]
    ]


def around(case: Case, compiled: bool) -> list[Variant]:
    """For a gate: the run's own shape, then what breaks kernels, small, in its precision, heads and mask.

    Where each shape is compiled for seconds, there are two of them.
    """
    small = replace(case, batch=2, sequence_length=_near(case, 256), heads=_few(case), kv_heads=_few_kv(case))
    odd = replace(small, sequence_length=min(257, case.sequence_length + 1))
    many = replace(small, batch=1, heads=small.heads // small.kv_heads, kv_heads=1)
    long = replace(many, sequence_length=_near(case, 4096))
    found = [
        Variant(case),
        Variant(small, "needle"),
        Variant(small, "large logits", "fused qkv"),
        Variant(small, "masked gradient", "heads first"),
    ]
    return found if compiled else [*found, Variant(odd), Variant(long, "offset")]


def base(device: str) -> list[Case]:
    """Small shapes to try habits, kernels and the model at: the first that a backend supports is taken."""
    length = 256 if device == "cuda" else 128
    return [
        Case(device, dtype, 2, length, 4, 2, head_dim)
        for dtype in DTYPES[device][:2]
        for head_dim in (128, 64, 16)
    ]


def busy(device: str) -> Case:
    """A shape that keeps all of a GPU busy: only there do its blocks end in another order each time."""
    return Case(device, "bfloat16", 1, 4096, 32, 8, 128) if device == "cuda" else base(device)[0]


def _variant(device: str, dtype: str, shape: Shape, data: str, layout: str) -> Variant:
    batch, length, heads, kv_heads, head_dim, causal = shape
    return Variant(Case(device, dtype, batch, length, heads, kv_heads, head_dim, causal), data, layout)


def _near(case: Case, length: int) -> int:
    """Not longer than the run's own sequence, so that a gate costs no more than the run's first step."""
    return min(case.sequence_length, length)


def _few_kv(case: Case) -> int:
    """Two key heads tell whether heads are mixed up; an odd count keeps its one."""
    return min(case.kv_heads, 2)


def _few(case: Case) -> int:
    return _few_kv(case) * (case.heads // case.kv_heads)
