"""Each number that a page's tables say of groups, computed again from the run folders' records by other means."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.query.ask import ask
from analysis.report.answer import ran
from analysis.report.build import build_report
from analysis.store.collect import collect
from model.record.records import DesignRecord
from tests.analysis.demo import DESIGN
from tests.analysis.fabricate import completed

Cells = dict[str, dict[str, str]]


def table(page: Path, label: str) -> Cells:
    """The cells of a page's table by the row's head and the column's, without the letters of notes."""
    html = (
        page.read_text(encoding="utf-8").partition(f'aria-label="Table: {label}"')[2].partition("</table>")[0]
    )
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S) for row in html.split("<tr")[1:]]
    plain = [[" ".join(re.sub(r"<sup>.*?</sup>|<[^>]*>", "", cell).split()) for cell in row] for row in rows]
    heads = plain[0]
    return {row[0]: dict(zip(heads, row, strict=True)) for row in plain[1:]}


def numbers(text: str) -> list[float]:
    """The numbers of a cell: a value, and the ends of its interval."""
    return [float(number.replace(",", "")) for number in re.findall(r"[+-]?[\d,]+\.?\d*", text)]


def rounded(text: str) -> float:
    """By how much the numbers of a cell may be off, as they have so many decimals."""
    decimals = max(len(part) for part in re.findall(r"\d+\.?(\d*)", text))
    return 0.51 * 10.0**-decimals


@pytest.fixture(scope="module")
def runs(demo: Path) -> dict[str, list[dict[str, Any]]]:
    """Completed runs by backend, each with its counted step times and last losses, from the base tables."""
    records = ask(
        demo,
        """
        SELECT r.attention, r.run_id, r.seed, s.step, s.steps, s.step_seconds, s.loss, s.tokens, a.final_loss
        FROM run_records r
        JOIN attempts a ON a.study = r.study AND a.run_id = r.run_id AND a.outcome = 'completed'
        JOIN step_records s ON s.study = r.study AND s.run_id = r.run_id
        ORDER BY r.attention, r.seed, s.step""",
    ).records()
    by_run = defaultdict(list)
    for row in records:
        by_run[row["attention"], row["seed"]].append(row)
    runs_by_backend = defaultdict(list)
    for (backend, seed), steps in by_run.items():
        step_times = {row["step"]: row["step_seconds"] for row in steps if row["step"] - row["steps"] >= 10}
        final_losses = {row["step"]: row["loss"] for row in steps if row["step"] > 800}
        runs_by_backend[backend].append(
            {"seed": seed, "times": step_times, "losses": final_losses, "final": steps[-1]["loss"]}
        )
    return runs_by_backend


def rate(run: dict[str, Any]) -> float:
    """Tokens per second at the middle step time, of an even number at the geometric mean of the two."""
    times = list(run["times"].values())
    low, high = (np.percentile(times, 50, method=method) for method in ("lower", "higher"))
    return 4096 / float(np.sqrt(low * high))


def t_interval(values: list[float], confidence: float) -> tuple[float, float]:
    from scipy import stats

    low, high = stats.t.interval(confidence, len(values) - 1, np.mean(values), stats.sem(values))
    return float(low), float(high)


def test_the_overview_says_of_groups_what_their_records_say(
    demo_report: Path, runs: dict[str, list[dict[str, Any]]]
) -> None:
    cells = table(demo_report / "index.html", "Groups")
    assert len([backend for backend in runs if backend in cells]) == len(runs) == 7
    for backend, repeats in runs.items():
        row = cells[backend]
        rates, final = [rate(run) for run in repeats], [run["final"] for run in repeats]
        assert int(row["n"].partition(" ")[0]) == len(repeats)
        middle = np.sqrt(np.prod(rates)) if len(rates) == 2 else np.median(rates)
        speed, *interval = numbers(row["Tokens/s"])
        assert speed == pytest.approx(middle, abs=0.51)
        if len(repeats) > 2:
            assert interval == pytest.approx(np.exp(t_interval(list(np.log(rates)), 0.95)), abs=0.51)
        loss, *loss_interval = numbers(row["Final loss"])
        assert loss == pytest.approx(np.median(final), abs=6e-5)
        expected = t_interval(final, 0.95) if len(final) > 2 else []
        assert loss_interval == pytest.approx(list(expected), abs=6e-5)


def test_ratios_are_those_of_runs_with_one_seed_or_of_the_medians_of_one_run_each(
    demo_report: Path, runs: dict[str, list[dict[str, Any]]]
) -> None:
    cells, base = table(demo_report / "comparison.html", "Tokens per second compared"), runs["cudnn"]
    assert list(cells) == sorted(set(runs) - {"cudnn"})
    for backend, row in cells.items():
        repeats, cell = runs[backend], row["Difference"]
        if len(repeats) == 1:
            change = 100 * (rate(repeats[0]) / rate(base[0]) - 1)
            assert numbers(cell)[0] == pytest.approx(change, abs=rounded(cell))
            assert int(row["n"]) == 1
            assert row["Verdict"] in ("observed", "inconclusive")
            continue
        logs = [
            np.log(rate(run) / rate(counterpart)) for run, counterpart in zip(repeats, base, strict=False)
        ]
        assert numbers(cell)[0] == pytest.approx(100 * np.expm1(np.mean(logs)), abs=rounded(cell))
        expected = 100 * np.expm1(t_interval(logs, 0.95))
        assert numbers(row["Interval"]) == pytest.approx(list(expected), abs=rounded(row["Interval"]))
        assert int(row["n"]) == len(logs)


def test_losses_are_differences_over_the_last_fifth_and_their_verdicts_follow_from_the_interval(
    demo: Path, demo_report: Path, runs: dict[str, list[dict[str, Any]]]
) -> None:
    cells, base = table(demo_report / "comparison.html", "Losses compared"), runs["cudnn"]
    diverged = ask(demo, "SELECT attention FROM runs WHERE outcome = 'diverged'").records()
    margin = DESIGN.margins["loss"]
    kinds = {}
    for backend, row in cells.items():
        if {"attention": backend} in diverged:
            assert row["Verdict"] == "different"
            continue
        pairs = list(zip(runs[backend], base, strict=False))
        gaps = [
            np.mean([run["losses"][step] - counterpart["losses"][step] for step in run["losses"]])
            for run, counterpart in pairs
        ]
        assert int(row["n"]) == len(gaps)
        low, high = numbers(row["Interval"])
        if len(gaps) > 1:
            cell = row["Difference, nats"]
            assert numbers(cell)[0] == pytest.approx(np.mean(gaps), abs=rounded(cell))
            assert [low, high] == pytest.approx(t_interval(gaps, 0.9), abs=rounded(row["Interval"]))
        inside, outside = -margin < low and high < margin, low > margin or high < -margin
        kinds[backend] = row["Verdict"]
        assert row["Verdict"] == ("equivalent" if inside else "different" if outside else "inconclusive")
    assert kinds["flash3"] == "different"
    assert kinds["auto"] == kinds["flash"] == "equivalent"


def test_tiers_are_those_of_all_pairs_tested_with_holms_correction(
    demo_report: Path, runs: dict[str, list[dict[str, Any]]]
) -> None:
    from scipy import stats

    repeated = {backend: repeats for backend, repeats in runs.items() if len(repeats) > 1}
    p_values = {}
    for a, b in combinations(repeated, 2):
        logs = [np.log(rate(x) / rate(y)) for x, y in zip(repeated[a], repeated[b], strict=False)]
        p_values[a, b] = stats.ttest_1samp(logs, 0).pvalue
    distinct, rejecting = set(), True
    for place, (pair, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        rejecting = rejecting and p * (len(p_values) - place) <= 0.05
        distinct |= {frozenset(pair)} if rejecting else set()
    tiers = defaultdict(set)
    for tier, row in table(demo_report / "comparison.html", "Tiers").items():
        for backend in row["Groups"].split(", "):
            tiers[backend].add(tier)
    assert distinct
    for a, b in combinations(repeated, 2):
        assert (frozenset((a, b)) in distinct) == (not tiers[a] & tiers[b]), (a, b)
    assert not set(runs) - set(repeated) & set(tiers)
    pairs = re.search(
        r'aria-label="Table: Pairs".*?</table>', (demo_report / "comparison.html").read_text(), re.S
    )
    assert pairs and pairs[0].count(">faster<") == len(distinct)


def test_runs_are_not_said_to_lack_a_value_where_the_baseline_lacks_runs(root: Path, tmp_path: Path) -> None:
    design = DesignRecord(order="as written", baseline={"attention": "cudnn"})
    for backend in ("auto", "flash"):
        completed(root, backend, attention=backend, steps=300, design=design)
    collect(root)
    out = build_report(root, "backends", tmp_path / "out").parent
    text = " ".join(re.sub(r"<[^>]*>", "", (out / "index.html").read_text(encoding="utf-8")).split())
    reason = "the baseline, attention: cudnn, has no run in this study"
    assert f"Not compared, because {reason}: auto and flash." in text
    assert not (out / "comparison.html").exists()  # it would have nothing to show


def test_runs_on_other_numbers_of_gpus_are_not_said_to_have_shared_a_machine() -> None:
    placements = [(1, "GPU-a"), (1, "GPU-b"), (2, "GPU-a"), (4, "GPU-c")]  # the first one's id
    runs = [
        {"device": "NVIDIA H200", "gpus": count, "processes": count, "nodes": 1, "gpu_uuid": name}
        for count, name in placements
    ]
    assert ran._devices(runs) == " on 1, 2 and 4 GPUs (NVIDIA H200)"
    assert ran._devices(runs[:2]) == " on NVIDIA H200 (2 of them, one a run)"
    assert ran._devices(runs[2:3]) == " on 2 x NVIDIA H200"


def test_groups_without_repeats_are_observed_and_the_page_says_what_would_make_findings(
    root: Path, tmp_path: Path
) -> None:
    for backend, seconds in (("auto", 0.4), ("flash", 0.5)):
        completed(root, backend, seconds, attention=backend, steps=300)
    collect(root)
    out = build_report(root, "backends", tmp_path / "out").parent
    text = " ".join(re.sub(r"<[^>]*>", "", (out / "index.html").read_text(encoding="utf-8")).split())
    assert "To test them, write repeats: 6 in the study." in text
    assert "Write it in the study, for example baseline: {attention: auto}" in text
    assert not (out / "comparison.html").exists()  # it would have nothing to show
