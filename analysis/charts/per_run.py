"""One number of every completed run: throughput, utilisation, time of a step, peak memory."""

from __future__ import annotations

from dataclasses import replace

from analysis.charts import Chart, Figure, Row, Styles
from analysis.charts._quantities import PEAK_MEMORY
from analysis.charts._rows import DotAxis, dot_figure, rate_figure, run_name
from analysis.query.statements import COMPLETED_RUNS
from analysis.stats import by_label, rate
from analysis.wording import in_a_row


def _tokens_per_second(rows: list[Row], styles: Styles) -> Figure | None:
    if not rows:
        return None
    what = "Tokens per second, including padding: tokens per step divided by the median seconds per step."
    if rows[0]["task"] == "inference":
        what = "Tokens of prompts per second: the tokens of a prefill divided by its median seconds."
    axis = DotAxis("tokens per second", ",.0f")
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
            f"Percent of the device's dense peak: {_formula(with_peak)} FLOP per token x tokens per second / "
            "peak. N excludes the input embedding; no causal discount, no recomputation. Not comparable with "
            f"a kernel's TFLOP/s. Peak of {'; of '.join(peak_words)}."
        )
        if len({row["peak_flops"] for row in with_peak}) > 1:
            what += " Shares of different peaks do not show which group is faster; tokens per second do."
        return rate_figure(with_peak, styles, DotAxis("percent of the peak (MFU)", ".1f"), rate("mfu"), what)

    measured = [row for row in rows if row["tflops"] is not None]
    if not measured:
        return None
    devices = ", ".join(sorted({row["device"] or "an unnamed device" for row in measured}))
    what = (
        f"Model TFLOP/s of one device: {_formula(measured)} FLOP per token x tokens per second. N excludes "
        "the input embedding; no causal discount, no recomputation. Not comparable with a kernel's "
        "TFLOP/s."
    )
    note = (
        f"MFU is not shown: the peak FLOP/s of {devices} at this precision is not known, and a peak "
        "is never guessed. The profile can state it. Until then, this figure shows the rate that MFU "
        "would divide by the peak."
    )
    axis = DotAxis("model TFLOP/s", ".3~g")
    figure = rate_figure(measured, styles, axis, rate("tflops"), what)
    return replace(figure, title="Model TFLOP/s (peak unknown)", note=note)


def _formula(rows: list[Row]) -> str:
    """A study has one task, so that no axis has two formulas."""
    if rows[0]["task"] == "inference":
        return "of a prefill, forward only, with the output head for the last token alone: (2 N + 4 L H Q T)"
    return "(6 N + 12 L H Q T)"


def _step_time(rows: list[Row], styles: Styles) -> Figure | None:
    if not rows:
        return None
    what = "Seconds per step: the median of a run's step records after the warm-up."
    return rate_figure(rows, styles, DotAxis("seconds per step", ".4f"), lambda _row, seconds: seconds, what)


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
        "device memory that PyTorch allocated" if row["gpus"] else "resident memory of the process"
        for row in rows
    }
    what = (
        f"Peak over the whole run: {' or '.join(sorted(kinds))}. Runs that ran out of memory are not shown: "
        "their peak is that of the failed attempt."
    )
    axis = DotAxis("GiB of memory at the peak", ",.2f", zero=True)
    return dot_figure(points, PEAK_MEMORY.estimates(rows), styles, axis, what, rows)


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
