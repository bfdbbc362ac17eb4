"""One number of every completed run: throughput, energy, utilisation, time of a step, peak memory."""

from __future__ import annotations

from dataclasses import replace

from analysis.charts import Chart, Figure, Row, Styles
from analysis.charts._quantities import ENERGY, PEAK_KEY, PEAK_MEMORY
from analysis.charts._rows import DotAxis, dot_figure, rate_figure, run_name
from analysis.charts._values import Ends
from analysis.query.statements import COMPLETED_RUNS
from analysis.stats import by_label, rate
from analysis.wording import in_a_row
from model.record.tasks import TASKS


def _tokens_per_second(rows: list[Row], styles: Styles) -> Figure | None:
    if not rows:
        return None
    what = "A step's tokens, padding included, over the median seconds of a run's steps."
    if not TASKS[rows[0]["task"]].trains:
        what = "A prefill's tokens over the median seconds of a run's prefills."
    axis = DotAxis("tokens per second", ",.0f", Ends("tokens per second"), reported="tokens_per_second")
    return rate_figure(rows, styles, axis, rate("tokens_per_second"), what)


def _mfu(rows: list[Row], styles: Styles) -> Figure | None:
    """The utilisation, or the rate that it would divide by the peak where no run's peak is known."""
    with_peak = [row for row in rows if row["mfu"] is not None]
    if with_peak:
        peaks: dict[str, list[Row]] = {}
        for row in with_peak:
            device = row["device"] or "an unnamed device"
            peak = f"{device}: {row['peak_flops'] / 1e12:,.4g} TFLOP/s ({row['peak_source']})"
            peaks.setdefault(peak, []).append(row)
        peak_words = [
            f"{peak}{f' for {in_a_row(list(by_label(peak_rows)))}' if len(peaks) > 1 else ''}"
            for peak, peak_rows in sorted(peaks.items())
        ]
        what = (
            f"{_formula(with_peak)} FLOP a token, no causal discount, no recomputation, over the dense peak "
            f"of {'; of '.join(peak_words)}."
        )
        if len({row["peak_flops"] for row in with_peak}) > 1:
            what += " Shares of different peaks do not show which group is faster; tokens per second do."
        axis = DotAxis("percent of the peak (MFU)", ".1f", Ends("MFU", " %"), reported="mfu")
        return rate_figure(with_peak, styles, axis, rate("mfu"), what)

    measured = [row for row in rows if row["tflops"] is not None]
    if not measured:
        return None
    devices = ", ".join(sorted({row["device"] or "an unnamed device" for row in measured}))
    what = f"Of one device: {_formula(measured)} FLOP a token, no causal discount, no recomputation."
    note = (
        f"MFU is not shown: the peak FLOP/s of {devices} at this precision is not known, and never guessed. "
        f"{PEAK_KEY} Until then, this is the rate that MFU would divide by the peak."
    )
    axis = DotAxis("model TFLOP/s", ".3~g", Ends("model TFLOP/s"), reported="tflops")
    figure = rate_figure(measured, styles, axis, rate("tflops"), what)
    return replace(figure, title="Model TFLOP/s (peak unknown)", note=note)


def _formula(rows: list[Row]) -> str:
    """A study has one task, so that no axis has two formulas."""
    if not TASKS[rows[0]["task"]].trains:
        return (
            "(2 M + 2 E / T + 4 L H Q T), E the parameters of the output head, M those without it and the "
            "input embedding,"
        )
    return "(6 N + 12 L H Q T), N the parameters without the input embedding,"


def _step_time(rows: list[Row], styles: Styles) -> Figure | None:
    if not rows:
        return None
    what = "Of a run, the median of its steps."
    axis = DotAxis(
        "seconds per step", ".4f", Ends("seconds per step", "", "shortest", "longest", high_first=False)
    )
    return rate_figure(rows, styles, axis, lambda _row, seconds: seconds, what)


_MEMORY_SQL = """\
SELECT label, run_id, seed, repeat, gpus, peak_memory_bytes,
  peak_memory_bytes / 1024.0 ** 3 AS peak_memory_gib
FROM runs
WHERE study = $study AND outcome = 'completed' AND peak_memory_bytes IS NOT NULL
ORDER BY place, seed, repeat, run_id"""


def _memory(rows: list[Row], styles: Styles) -> Figure | None:
    if not rows:
        return None
    points = [(row["label"], run_name(row), row["peak_memory_gib"]) for row in rows]
    kinds = {
        "allocated by PyTorch on the device" if row["gpus"] else "resident memory of the process"
        for row in rows
    }
    per_gpu = any(row["gpus"] and row["gpus"] > 1 for row in rows)
    what = f"Over the whole run, {' or '.join(sorted(kinds))}{', of the GPU with most' if per_gpu else ''}."
    unit = "GiB per GPU" if per_gpu else "GiB"
    ends = Ends(f"peak memory{' per GPU' if per_gpu else ''}", " GiB", "least", "most", high_first=False)
    axis = DotAxis(f"{unit} of memory at the peak", ",.2f", ends, zero=True, reported="peak_memory_bytes")
    return dot_figure(points, PEAK_MEMORY.estimates(rows), styles, axis, what, rows)


_ENERGY_SQL = """\
SELECT label, run_id, seed, repeat, joules_per_token
FROM runs
WHERE study = $study AND outcome = 'completed' AND joules_per_token IS NOT NULL
ORDER BY place, seed, repeat, run_id"""


def _energy(rows: list[Row], styles: Styles) -> Figure | None:
    if not rows:
        return None
    points = [(row["label"], run_name(row), 1000 * row["joules_per_token"]) for row in rows]
    ends = Ends("energy per token", " mJ", "least", "most", high_first=False)
    axis = DotAxis("millijoules per token", ENERGY.number, ends)
    return dot_figure(points, ENERGY.estimates(rows), styles, axis, ENERGY.what, rows)


charts = {
    "tokens_per_second": Chart(
        title="Tokens per second",
        page="tokens",
        order=20,
        question="How many tokens does each group process per second?",
        sql=COMPLETED_RUNS,
        build=_tokens_per_second,
        empty="No run completed with step records after the warm-up.",
        tasks=("training", "inference"),
    ),
    "energy": Chart(
        title="Energy per token",
        page="tokens",
        order=25,
        question="How much energy do the GPUs take for a token?",
        sql=_ENERGY_SQL,
        build=_energy,
        applies=bool,  # CPUs have no counter here
        empty="No run completed with readings of its GPUs' energy.",
        tasks=("training", "inference"),
    ),
    "mfu": Chart(
        title="Model FLOPs utilisation",
        page="mfu",
        order=30,
        question="What share of the device's peak do the runs reach?",
        sql=COMPLETED_RUNS,
        build=_mfu,
        empty="No run completed with step records after the warm-up and a known FLOP count.",
        tasks=("training", "inference"),
    ),
    "step_time": Chart(
        title="Time of one step",
        page="time",
        order=41,
        question="How long does one optimizer step take?",
        sql=COMPLETED_RUNS,
        build=_step_time,
        empty="No run completed with step records after the warm-up.",
    ),
    "memory": Chart(
        title="Peak memory",
        page="memory",
        order=50,
        question="How much memory does each group need?",
        sql=_MEMORY_SQL,
        build=_memory,
        empty="No run completed with a memory reading.",
        warmup=False,
        tasks=("training", "inference"),
    ),
}
