"""What is true of the numbers that a study quotes of others: beside ours, as hollow marks, and the rules that they break."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.oracle.calls import case_of
from tests.oracle.listing import Spot
from tests.oracle.truth import Run, Study

OTHER_WORK, SHORTER = (
    "train.batch_size",
    "train.steps",
)  # what a launch may have changed: the work, or how long it goes on
OF_WHOLE_RUNS = ("training_tokens_percentage", "final_loss", "training_seconds")
UNITS = {"peak_memory_bytes": 2**30, "call_memory_bytes": 2**20}


class Quoted(NamedTuple):
    """A number of others of a group; of one backend where its runs call several."""

    label: str
    backend: str | None
    name: str
    printed: str
    entry: dict[str, Any]
    run: Run

    @property
    def value(self) -> float:
        """In the unit of the figures."""
        return float(self.printed) / UNITS.get(self.name, 1)

    @property
    def has_ratio(self) -> bool:
        """Whether our runs do the same work."""
        changed = self.run.plan.get("overridden", {})
        return OTHER_WORK not in changed and not (SHORTER in changed and self.name in OF_WHOLE_RUNS)


def quoted(study: Study) -> list[Quoted]:
    """All of a study, in its order."""
    return [
        Quoted(label, entry.get("backend"), name, printed, entry, runs[0])
        for label, runs in study.groups.items()
        for entry in runs[0].plan.get("reported", ())
        for name, printed in entry["numbers"].items()
    ]


FIGURES = {
    "tokens_per_second": "tokens_per_second", "mfu": "mfu", "memory": "peak_memory_bytes",
    "time_saved": "time_saved_percentage", "memory_saved": "memory_saved_percentage",
    "kernel_time": "both_milliseconds", "kernel_forward": "forward_tflops", "kernel_backward": "backward_tflops",
    "kernel_memory": "call_memory_bytes", "kernel_batch": "both_milliseconds",
}  # fmt: skip


def drawn(spot: Spot) -> dict[str, list[Quoted]]:
    """By group, what a figure has of them."""
    marks: dict[str, list[Quoted]] = {}
    for number in quoted(spot.study):
        has_ours = bool(spot.study.completed(number.label))
        if "saved" in spot.figure:
            has_ours = spot.study.against(number.label) in spot.study.measured
        if number.name == FIGURES.get(spot.figure) and number.has_ratio and has_ours:
            marks.setdefault(number.backend or number.label, []).append(number)
    return marks


def hollow(spot: Spot) -> str:
    """What a caption says of the marks."""
    return " Hollow diamonds: reported by others, in no comparison." if drawn(spot) else ""


def described(spot: Spot) -> str:
    """What a description says of them."""
    texts = [
        f"{label} {', '.join(f'{number.value}' for number in numbers)}"
        for label, numbers in drawn(spot).items()
    ]
    return f" Reported by others: {'; '.join(texts)}." if texts else ""


def flags(study: Study) -> Iterator[str]:
    """The rules that numbers break, and notes."""
    for runs in study.groups.values():
        for entry in runs[0].plan.get("reported", ()):
            if entry.get("note"):
                yield f"Note of the study: {entry['note']}"
            yield from (f"Flagged: {rule}" for rule in broken(runs[0], entry))


PEAK = 989.4  # TFLOP/s of an H100 in bfloat16, by its data sheet


def broken(run: Run, entry: dict[str, Any]) -> Iterator[str]:
    """Each rule, where the numbers are far beyond what rounding allows."""
    values = {name: float(printed) for name, printed in entry["numbers"].items()}
    for name, value in values.items():
        if name.endswith("_percentage") and value > 101:
            yield f"{name} is {value} %, and at most 100 % can be: rule {name} <= 100"
    if {"tflops", "tokens_per_second"} <= values.keys():
        count = 1e12 * entry.get("gpus", 1) * values["tflops"] / values["tokens_per_second"]
        if abs(count / run.flop - 1) > 0.05:
            for unit, name in ((1e9, "GFLOP"), (1e6, "MFLOP")):
                yield (
                    f"tflops / tokens_per_second is {count / unit} {name} per token, and the model of the study has "
                    f"{run.flop / unit} (6 N + 12 L H Q T, N without the input embedding): "
                    "rule tflops = tokens_per_second x FLOP per token"
                )
    if "call" not in run.config:
        return
    case = case_of(run)
    minimum = 4 * 2 * case.batch * case.length * case.heads * case.dim  # in bfloat16, as many key heads
    if values.get("call_memory_bytes", minimum) < minimum:
        yield (
            f"call_memory_bytes is {entry['numbers']['call_memory_bytes']}, below the {minimum} bytes that the output and the "
            "gradients of Q, K and V take, as where a unit is missing (40.3 GB are 40.3e9): "
            "rule bytes >= those of the tensors themselves"
        )
    flop = case.flop("forward")
    if {"forward_milliseconds", "forward_tflops"} <= values.keys():
        count = 1e9 * values["forward_milliseconds"] * values["forward_tflops"]
        if abs(count / flop - 1) > 0.05:
            yield (
                f"forward_tflops x forward_milliseconds is {count / 1e9} GFLOP, and a forward at the shape of the study has "
                f"{flop / 1e9}: rule tflops x milliseconds = FLOP"
            )
    if "H100" in entry["hardware"] and values.get("forward_tflops", 0) > PEAK:
        rounding = 10.0 ** -len(entry["numbers"]["forward_tflops"].partition(".")[2]) / 2
        yield (
            f"{values['forward_tflops'] - rounding} TFLOP/s or more in a forward is above the peak of {entry['hardware']}, {PEAK} "
            "TFLOP/s in bfloat16 (NVIDIA H100 datasheet, SXM, dense): rule tflops <= peak"
        )
    parts = [f"{direction}_milliseconds" for direction in ("forward", "backward", "both")]
    if set(parts) <= values.keys() and abs(values[parts[0]] + values[parts[1]] - values[parts[2]]) > 0.1:
        forward, backward, total = (values[part] for part in parts)
        yield f"{forward} ms and {backward} ms are not {total} ms together: rule both = forward + backward"
