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
from analysis.report.render import UNKNOWN
from analysis.store.collect import collect
from model.record.records import DesignRecord
from tests.analysis.demo import DESIGN
from tests.analysis.fabricate import completed

Cells = dict[str, list[str]]


def table(page: Path, label: str) -> Cells:
    """The cells of a page's table by the row's head."""
    html = (
        page.read_text(encoding="utf-8").partition(f'aria-label="Table: {label}"')[2].partition("</table>")[0]
    )
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S) for row in html.split("<tr")[2:]]
    plain = [[" ".join(re.sub(r"<sup>.*?</sup>|<[^>]*>", "", cell).split()) for cell in row] for row in rows]
    return {row[0]: row[1:] for row in plain if len(row) > 1}


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
    found = defaultdict(list)
    for (backend, seed), steps in by_run.items():
        counted = {row["step"]: row["step_seconds"] for row in steps if row["step"] - row["steps"] >= 10}
        last = {row["step"]: row["loss"] for row in steps if row["step"] > 800}
        found[backend].append({"seed": seed, "times": counted, "losses": last, "final": steps[-1]["loss"]})
    return found


def rate(run: dict[str, Any]) -> float:
    """Tokens per second at the middle step time, of an even number at the geometric mean of the two."""
    times = list(run["times"].values())
    low, high = (np.percentile(times, 50, method=method) for method in ("lower", "higher"))
    return 4096 / float(np.sqrt(low * high))


def ends(text: str) -> list[float]:
    return [float(part.replace(",", "")) for part in text.split(f" {UNKNOWN} ")]


def t_interval(values: list[float], confidence: float) -> tuple[float, float]:
    from scipy import stats

    low, high = stats.t.interval(confidence, len(values) - 1, np.mean(values), stats.sem(values))
    return float(low), float(high)


def test_the_overview_says_of_groups_what_their_records_say(
    demo_report: Path, runs: dict[str, list[dict[str, Any]]]
) -> None:
    cells = table(demo_report / "index.html", "Groups")
    assert len([backend for backend in runs if backend in cells]) == len(runs) == 7
    for backend, mine in runs.items():
        speed, _, interval = cells[backend][0].partition(" ")
        loss, _, loss_interval = cells[backend][5].removesuffix(" differs").partition(" ")
        rates, final = [rate(run) for run in mine], [run["final"] for run in mine]
        assert int(cells[backend][-2].partition(" ")[0]) == len(mine)
        middle = np.sqrt(np.prod(rates)) if len(rates) == 2 else np.median(rates)
        assert float(speed.replace(",", "")) == pytest.approx(middle, abs=0.51)
        if len(mine) > 1:
            assert ends(interval) == pytest.approx(np.exp(t_interval(list(np.log(rates)), 0.95)), abs=0.51)
        if len(mine) > 2:
            assert ends(loss_interval) == pytest.approx(t_interval(final, 0.95), abs=6e-5)
        else:
            assert loss_interval == ""
        assert float(loss) == pytest.approx(np.median(final), abs=6e-5)


def test_ratios_are_those_of_runs_with_one_seed_or_of_the_same_steps(
    demo_report: Path, runs: dict[str, list[dict[str, Any]]]
) -> None:
    cells, base = table(demo_report / "comparison.html", "Ratios"), runs["cudnn"]
    assert list(cells) == sorted(set(runs) - {"cudnn"})
    for backend, (baseline, ratio, interval, n, level, verdict) in cells.items():
        mine = runs[backend]
        assert baseline == "cudnn"
        if len(mine) == 1:
            common = sorted(mine[0]["times"].keys() & base[0]["times"].keys())
            each = [base[0]["times"][step] / mine[0]["times"][step] for step in common]
            assert float(ratio) == pytest.approx(np.median(each), abs=6e-5)
            assert (int(n), level, verdict) == (len(each), "records of one run each", "observed")
            continue
        logs = [np.log(rate(one) / rate(other)) for one, other in zip(mine, base, strict=False)]
        assert float(ratio) == pytest.approx(np.exp(np.mean(logs)), abs=6e-5)
        assert ends(interval) == pytest.approx(np.exp(t_interval(logs, 0.95)), abs=6e-5)
        assert (int(n), level) == (len(logs), "runs")


def test_losses_are_differences_over_the_last_fifth_and_their_verdicts_follow_from_the_interval(
    demo: Path, demo_report: Path, runs: dict[str, list[dict[str, Any]]]
) -> None:
    cells, base = table(demo_report / "comparison.html", "Losses"), runs["cudnn"]
    diverged = ask(demo, "SELECT attention FROM runs WHERE outcome = 'diverged'").records()
    margin = DESIGN.margins["loss"]
    kinds = {}
    for backend, (_, difference, interval, stated, n, _, verdict) in cells.items():
        if {"attention": backend} in diverged:
            assert verdict == "different"
            continue
        pairs = list(zip(runs[backend], base, strict=False))
        gaps = [
            np.mean([one["losses"][step] - other["losses"][step] for step in one["losses"]])
            for one, other in pairs
        ]
        assert (float(stated), int(n)) == (margin, len(gaps))
        low, high = ends(interval)
        if len(gaps) > 1:
            assert float(difference) == pytest.approx(np.mean(gaps), abs=6e-5)
            assert [low, high] == pytest.approx(t_interval(gaps, 0.9), abs=6e-5)
        inside, outside = -margin < low and high < margin, low > margin or high < -margin
        kinds[backend] = verdict
        assert verdict == ("equivalent" if inside else "different" if outside else "inconclusive")
    assert kinds["flash3"] == "different"
    assert kinds["auto"] == kinds["flash"] == "equivalent"


def test_tiers_are_those_of_all_pairs_tested_with_holms_correction(
    demo_report: Path, runs: dict[str, list[dict[str, Any]]]
) -> None:
    from scipy import stats

    repeated = {backend: mine for backend, mine in runs.items() if len(mine) > 1}
    p_values = {}
    for a, b in combinations(repeated, 2):
        logs = [np.log(rate(x) / rate(y)) for x, y in zip(repeated[a], repeated[b], strict=False)]
        p_values[a, b] = stats.ttest_1samp(logs, 0).pvalue
    apart, still = set(), True
    for place, (pair, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        still = still and p * (len(p_values) - place) <= 0.05
        apart |= {frozenset(pair)} if still else set()
    rows = table(demo_report / "comparison.html", "Tiers")
    tiers = {
        backend: {tier for tier, (labels,) in rows.items() if backend in labels.split(", ")}
        for backend in runs
    }
    assert apart
    for a, b in combinations(repeated, 2):
        assert (frozenset((a, b)) in apart) == (not tiers[a] & tiers[b]), (a, b)
    assert not any(tiers[backend] for backend in runs if backend not in repeated)


def test_runs_are_not_said_to_lack_a_value_where_the_baseline_lacks_runs(root: Path, tmp_path: Path) -> None:
    design = DesignRecord(order="as written", baseline={"attention": "cudnn"})
    for backend in ("auto", "flash"):
        completed(root, backend, attention=backend, steps=300, design=design)
    collect(root)
    out = build_report(root, "backends", tmp_path / "out").parent
    overview, text = (
        " ".join(re.sub(r"<[^>]*>", "", (out / f"{name}.html").read_text(encoding="utf-8")).split())
        for name in ("index", "comparison")
    )
    why = "the baseline, attention: cudnn, has no run in this study"
    assert f"There is no figure: {why}. Not compared, because {why}: auto, flash." in text
    assert f"auto, seed 0 (auto): completed, not compared: {why}" in text
    assert f"Losses are not compared: {why}." in text
    assert f"Not compared, because {why}: auto and flash." in overview


def test_runs_on_other_numbers_of_gpus_are_not_said_to_have_shared_a_machine() -> None:
    runs = [{"device": "NVIDIA H200", "gpus": each, "processes": each, "nodes": 1} for each in (1, 2, 2)]
    assert ran._where(runs) == " on 2 x NVIDIA H200 or NVIDIA H200"


def test_groups_without_repeats_are_observed_and_the_page_says_what_would_make_findings(
    root: Path, tmp_path: Path
) -> None:
    for backend, seconds in (("auto", 0.4), ("flash", 0.5)):
        completed(root, backend, seconds, attention=backend, steps=300)
    collect(root)
    out = build_report(root, "backends", tmp_path / "out").parent
    text = " ".join(re.sub(r"<[^>]*>", "", (out / "comparison.html").read_text(encoding="utf-8")).split())
    assert (
        "the study declares no baseline. Write it in the study, for example baseline: {attention: auto}"
        in text
    )
    assert "Left out" not in text  # no run is left out of a comparison that nobody asked for
    assert "There is no ranking" in text
    assert "auto, flash. To turn them into findings, write repeats: 6 in the study." in text
    cells = table(out / "index.html", "Groups")
    assert [row[0].split()[0] for row in cells.values()] == ["10,240", "8,192"]
    assert "Overlaps" not in (out / "index.html").read_text(encoding="utf-8")
