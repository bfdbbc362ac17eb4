"""What is true of figures of attention alone: which cases stand along an axis, and the value of each backend there."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.oracle import calls
from tests.oracle.calls import FP8, Case
from tests.oracle.listing import Spot
from tests.oracle.truth import Study, Value

DEVICE = "NVIDIA H100 80GB HBM3"  # of all studies
Fixed = dict[str, object]
ValueOf = Callable[[Study, Case, str], Value | None]


class Axis(NamedTuple):
    """What cases differ in along a series, and what they share, in one way or several."""

    title: str
    at: Callable[[Case], int]
    fixed: tuple[Callable[[Case], Fixed], ...]


def _shape(case: Case) -> Fixed:
    return {"batch": case.batch, "sequence length": case.length, "heads": case.heads, "head dim": case.dim}


def _but(*names: str) -> Callable[[Case], Fixed]:
    return lambda case: {name: value for name, value in _shape(case).items() if name not in names}


def _square(case: Case) -> Fixed:
    assert case.tile
    queries, keys = case.tile
    description = "as many queries as keys in a tile" if queries == keys else f"tiles of {queries} x {keys}"
    return {**_shape(case), description: None}


LENGTH = Axis(
    "sequence length",
    lambda case: case.length,
    (
        lambda case: {
            "batch x sequence length": case.batch * case.length, "heads": case.heads, "head dim": case.dim
        },
        _but("sequence length"),
    ),
)  # fmt: skip
BATCH = Axis("batch", lambda case: case.batch, (_but("batch"),))
KEYS = Axis(
    "keys of a tile",
    lambda case: (case.tile or (0, 0))[1],
    (lambda case: {**_shape(case), "queries of a tile": (case.tile or (0, 0))[0]}, _square),
)
QUERIES = Axis(
    "queries of a tile",
    lambda case: (case.tile or (0, 0))[0],
    (lambda case: {**_shape(case), "keys of a tile": (case.tile or (0, 0))[1]},),
)


TILES = Axis("tile", lambda case: (case.tile or (0, 0))[0] * 10**6 + (case.tile or (0, 0))[1], (_shape,))


def in_words(case: Case) -> str:
    """`128 x 64`, queries and keys of its tiles."""
    return "{} x {}".format(*case.tile or ())


def _ratio(numerator: Value | None, denominator: Value | None) -> Value | None:
    return Value(numerator.middle / denominator.middle) if numerator and denominator else None


def _memory(study: Study, case: Case, name: str) -> Value | None:
    size = calls.memory(study, case, name)
    return Value(size / 2**20) if size else None


def _saved(study: Study, case: Case, name: str) -> Value | None:
    share = _ratio(_memory(study, case, name), _memory(study, case, "math"))
    return Value(100 * (1 - share.middle)) if share else None


def _time(direction: str, mode: str = "graph") -> ValueOf:
    return lambda study, case, name: calls.time(study, case, name, direction, mode)


def _rate(direction: str) -> ValueOf:
    return lambda study, case, name: calls.rate(study, case, name, direction)


def _mask(study: Study, case: Case, name: str) -> Value | None:
    return _ratio(_time("both")(study, case, name), _time("both")(study, case._replace(causal=False), name))


class Figure(NamedTuple):
    """A figure with a line for each backend: its axis, its quantity with the unit, the value, and how it was made."""

    axis: Axis
    name: str
    unit: str
    value: ValueOf
    how: str


OF_CALLS = "95 % interval between order statistics of 8 calls in one process"
OF_MEDIANS, COUNTED = "no interval: a ratio of two medians", "no interval: counted, not sampled"
FIGURES = {
    "kernel_time": Figure(LENGTH, "time", "ms", _time("both"), OF_CALLS),
    "kernel_forward": Figure(
        LENGTH, "forward TFLOP/s", "", _rate("forward"), OF_CALLS
    ),
    "kernel_backward": Figure(
        LENGTH, "backward TFLOP/s", "", _rate("backward"), OF_CALLS
    ),
    "kernel_speedup": Figure(
        LENGTH, "speedup over math", "",
        lambda study, case, name: _ratio(_time("both")(study, case, "math"), _time("both")(study, case, name)),
        OF_MEDIANS,
    ),
    "kernel_memory": Figure(LENGTH, "peak memory", "MiB", _memory, COUNTED),
    "kernel_saved": Figure(LENGTH, "memory saved against math", "percent", _saved, COUNTED),
    "kernel_batch": Figure(BATCH, "time", "ms", _time("both"), OF_CALLS),
    "kernel_mask": Figure(LENGTH, "time with a causal mask over time without", "", _mask, OF_MEDIANS),
    "kernel_passes": Figure(
        LENGTH, "backward over forward", "", lambda *of: _ratio(_time("backward")(*of), _time("forward")(*of)),
        OF_MEDIANS,
    ),
    "kernel_host": Figure(
        LENGTH, "eager over CUDA graph", "", lambda *of: _ratio(_time("both", "eager")(*of), _time("both")(*of)),
        OF_MEDIANS,
    ),
    "kernel_tile_keys": Figure(KEYS, "time", "ms", _time("both"), OF_CALLS),
    "kernel_tile_queries": Figure(QUERIES, "time", "ms", _time("both"), OF_CALLS),
    "kernel_tile": Figure(TILES, "time", "ms", _time("both"), OF_CALLS),
}  # fmt: skip


def shared(case: Case, fixed: Fixed, of_tiles: bool, mask: str) -> str:
    """What the cases of a series share, in words."""
    tiles = {f"tiles of {case.tile[0]} x {case.tile[1]}": None} if case.tile and not of_tiles else {}
    drops = {f"dropout {case.dropout}": None} if case.dropout else {}
    properties = {**fixed, **tiles, **drops, mask: None, case.dtype: None, DEVICE: None}
    return ", ".join(name if value is None else f"{name} {value}" for name, value in properties.items())


def series(study: Study, figure: str) -> dict[str, list[Case]]:
    """The cases along a figure's axis, by what they share: those of three values or more, of tiles of two."""
    axis, grouped = FIGURES[figure].axis, dict[str, list[Case]]()
    of_tiles, all_cases = axis in (KEYS, QUERIES, TILES), calls.cases(study)
    fewest = 2 if axis is TILES else 3
    for fixed in axis.fixed:
        for case in all_cases:
            if of_tiles and not case.tile:
                continue
            mask = case.mask
            if figure == "kernel_mask":
                if not case.causal or case._replace(causal=False) not in all_cases:
                    continue
                mask = "causal and without a mask"
            grouped.setdefault(shared(case, fixed(case), of_tiles, mask), []).append(case)
    return {
        text: cases for text, cases in grouped.items() if len({axis.at(case) for case in cases}) >= fewest
    }


def mapped(study: Study) -> list[Case]:
    """The cases of the heat map: they differ in batch and length alone, in four places or more."""
    grouped: dict[Case, list[Case]] = {}
    for case in calls.cases(study):
        grouped.setdefault(case._replace(batch=0, length=0), []).append(case)
    return max(grouped.values(), key=len)


def gains(study: Study) -> list[tuple[str, Case, Case]]:
    """A backend, its case of 8 bits, and the same in bfloat16."""
    all_cases = calls.cases(study)
    pairs = [(case, case._replace(dtype="bfloat16")) for case in all_cases if case.dtype == FP8]
    return [
        (name, fp8_case, bfloat16_case)
        for fp8_case, bfloat16_case in pairs
        if bfloat16_case in all_cases
        for name in calls.timed(study, fp8_case)
    ]


def gain(study: Study, name: str, fp8_case: Case, bfloat16_case: Case) -> Value:
    """The medians' ratio, with its interval."""
    narrow, wide = (calls.time(study, case, name, "forward") for case in (fp8_case, bfloat16_case))
    assert narrow and wide
    return wide.over(narrow)


def errors(study: Study, name: str, case: Case) -> dict[str, float]:
    """Of the certificate that a backend's calls name, in percent; of what is allowed, as a share."""
    (key,) = {row["certificate"] for row in calls.rows(study, case, name)}
    (run,) = (run for run in study.runs if calls.case_of(run) == case)
    checks = study.certificate_of_key(run, key)["checks"]

    def worst(check: str, value: str, tensor: str = "", variant: str = "") -> float:
        return max(
            float(entry[value])
            for entry in checks
            if entry["name"] == check
            and tensor in ("", entry["what"])
            and entry["variant"].startswith(variant)
        )

    return {
        "error over the allowed": max(
            entry["measured"] / entry["tolerance"] for entry in checks if entry["name"] == "right"
        ),
        "error of the kernel, %": 100 * worst("right", "relative_error", variant="plain"),
        "error with the rounding of Q, K and V, %": 100 * worst("quantisation", "measured", "o", "plain"),
        "error of bfloat16, %": 100 * worst("quantisation", "measured", "o of bfloat16", "plain"),
        "the same with outliers, %": 100 * worst("quantisation", "measured", "o", "outliers"),
        "of bfloat16 with outliers, %": 100 * worst("quantisation", "measured", "o of bfloat16", "outliers"),
    }


def shown(spot: Spot) -> set[Case]:
    """The cases that a figure shows."""
    study, figure = spot.study, spot.figure
    if figure == "kernel_map":
        return set(mapped(study))
    if figure == "kernel_fp8":
        return {case for _, *pair in gains(study) for case in pair}
    if figure not in FIGURES:
        return {calls.main(study)}
    cases = {case for group in series(study, figure).values() for case in group}
    return cases | {case._replace(causal=False) for case in cases if figure == "kernel_mask"}


def rows(spot: Spot) -> list[str]:
    """Backends of the rows of a figure's table of values."""
    study, figure = spot.study, spot.figure
    if figure == "kernel_map":
        return [name for name in _named(study) for _ in mapped(study)]
    if figure == "kernel_fp8":
        return [name for name, *_ in gains(study)]
    if figure not in FIGURES:
        return calls.at_main(study)
    cases = [case for group in series(study, figure).values() for case in group]
    return [row["attention"] for case in cases for row in _forwards(study, case)]


def _named(study: Study) -> list[str]:
    return [
        name
        for name in calls.backends(study)
        if any(name in calls.timed(study, case) for case in mapped(study))
    ]


def _forwards(study: Study, case: Case) -> list[dict[str, str]]:
    all_rows = [row for name in calls.backends(study) for row in calls.rows(study, case, name)]
    return [row for row in all_rows if row["direction"] == "forward"]
