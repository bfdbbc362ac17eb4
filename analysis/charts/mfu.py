"""Model FLOPs utilisation; where the device's peak is not known, model TFLOP/s and why."""

from __future__ import annotations

from dataclasses import replace

from analysis.charts import Chart, Figure, Row, Styles
from analysis.charts._dots import Axis
from analysis.charts._rates import dots
from analysis.query.rates import COMPLETED_RUNS
from analysis.stats import by_label, grouped, rate
from analysis.wording import in_a_row


def _build(rows: list[Row], styles: Styles) -> Figure | None:
    known = [row for row in rows if row["mfu"] is not None]
    if known:
        return _utilisation(known, styles)
    measured = [row for row in rows if row["tflops"] is not None]
    return _rate(measured, styles) if measured else None


def _utilisation(rows: list[Row], styles: Styles) -> Figure:
    peaks = grouped(rows, _peak)
    said = [
        f"{peak}{f' for {in_a_row(list(by_label(mine)))}' if len(peaks) > 1 else ''}"
        for peak, mine in sorted(peaks.items())
    ]
    what = (
        f"Percent of the device's dense peak: {_formula(rows)} FLOP per token x tokens per second / peak. "
        "N excludes the input embedding; no causal discount, no recomputation. Not comparable with a "
        f"kernel's TFLOP/s. Peak of {'; of '.join(said)}."
    )
    if len({row["peak_flops"] for row in rows}) > 1:
        what += " Shares of different peaks do not show which group is faster; tokens per second do."
    return dots(rows, styles, Axis("percent of the peak (MFU)", ".1f"), rate("mfu"), what)


def _peak(row: Row) -> str:
    device = row["device"] or "an unnamed device"
    return f"{device}: {row['peak_flops'] / 1e12:,.4g} TFLOP/s ({row['peak_source']})"


def _rate(rows: list[Row], styles: Styles) -> Figure:
    devices = ", ".join(sorted({row["device"] or "an unnamed device" for row in rows}))
    what = (
        f"Model TFLOP/s of one device: {_formula(rows)} FLOP per token x tokens per second. N excludes "
        "the input embedding; no causal discount, no recomputation. Not comparable with a kernel's "
        "TFLOP/s."
    )
    note = (
        f"MFU is not shown: the peak FLOP/s of {devices} at this precision is not known, and a peak "
        "is never guessed. The profile can state it. Until then, this figure shows the rate that MFU "
        "would divide by the peak."
    )
    axis = Axis("model TFLOP/s", ".3~g")
    figure = dots(rows, styles, axis, rate("tflops"), what)
    return replace(figure, title="Model TFLOP/s (peak unknown)", note=note)


def _formula(rows: list[Row]) -> str:
    """A study has one task, so that no axis has two formulas."""
    if rows[0]["task"] == "inference":
        return "of a prefill, forward only, with the output head for the last token alone: (2 N + 4 L H Q T)"
    return "(6 N + 12 L H Q T)"


chart = Chart(
    title="Model FLOPs utilisation",
    page="mfu",
    order=30,
    question="What share of the device's peak do the runs reach?",
    sql=COMPLETED_RUNS,
    build=_build,
    empty="No run completed with step records after the warm-up and a known FLOP count.",
    tasks=("training", "inference"),
)
