"""Figures and pages of inference: latency of prompts and of decoded tokens, and no word of a training."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from analysis.audit.audit import audit
from analysis.report.build import build_report
from analysis.store import database as store
from analysis.store.collect import collect
from analysis.writeup.write import write
from tests.analysis.charts.drawn import draw
from tests.analysis.charts.test_step_profile import bars
from tests.analysis.fabricate import completed, inferred, profile

DESIGN = {"order": "interleaved", "order_seed": 0, "baseline": {"attention": "auto"}, "margins": {}}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """auto reads prompts in 100 ms, flash in 80; custom decodes nothing."""
    folder = tmp_path_factory.mktemp("runs")
    for repeat in (1, 2, 3):
        for backend, seconds, decode in (("auto", 0.1, 0.01), ("flash", 0.08, 0.02), ("custom", 0.05, None)):
            name, noise = f"{backend}{repeat}", 1 + repeat / 1000
            fields = {
                "run_id": name,
                "group": backend,
                "repeat": repeat,
                "factors": {"attention": backend},
                "design": DESIGN,
            }
            inferred(folder, backend, seconds * noise, decode and decode * noise, **fields)
    collect(folder)
    return folder


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("prefill_latency", {"auto": "100.20", "flash": "80.16", "custom": "50.10"}),
        ("decode_latency", {"auto": "10.020", "flash": "20.040"}),
    ],
)
def test_a_latency_is_the_median_over_runs_in_milliseconds(
    root: Path, name: str, values: dict[str, str]
) -> None:
    figure = draw(root, name, "inference")
    assert figure
    assert figure.table
    assert {row[0]: row[2] for row in figure.table.rows if row[2] != "\N{EN DASH}"} == values
    assert "milliseconds" in figure.table.columns[2]


def test_decoding_is_drawn_over_positions(root: Path) -> None:
    figure = draw(root, "decode_positions", "inference")
    assert figure
    assert figure.table
    assert figure.table.columns == ("group", *(f"position {position:,}" for position in range(1000, 1004)))
    assert [float(cell) for cell in figure.table.rows[0][1:]] == pytest.approx([5.01, 10.02, 10.02, 20.04])
    assert {run[:4] for run in figure.used} == {"auto", "flas"}


def words(page: Path) -> str:
    """What a reader sees, without SQL."""
    text = re.sub(r"<(script|style|pre)\b.*?</\1>", " ", page.read_text(), flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


@pytest.fixture(scope="module")
def pages(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_report(root, "inference", tmp_path_factory.mktemp("report") / "out", extra=write).parent


def test_the_answer_says_what_was_read_and_decoded_and_who_is_faster(pages: Path) -> None:
    text = words(pages / "index.html")
    assert (
        "A llama of 8.05 billion parameters read 10 batches of 2 prompts of 1,000 tokens and decoded 4 tokens "
        "after the last (not custom"
    ) in text
    assert "would take to decode: in this study it only reads prompts" in text
    assert "flash" in text and "custom" in text


@pytest.mark.fault
def test_decoded_tokens_are_ranked_by_tests_as_prompts_are(tmp_path: Path) -> None:
    """Three runs each. flash takes 2 % less than auto in every pair; flex 1.1 % more than flash, or 0.9 % less."""
    for repeat, usual in enumerate((0.0100, 0.0101, 0.0102), start=1):
        off = (1.0, 1.0001, 0.9999)[repeat - 1]
        times = {
            "auto": usual,
            "flash": 0.98 * off * usual,
            "flex": (1.001, 0.971, 0.991)[repeat - 1] * usual,
        }
        for backend, seconds in times.items():
            inferred(
                tmp_path, backend, 0.1 * off, seconds,
                run_id=f"{backend}{repeat}", group=backend, repeat=repeat, factors={"attention": backend},
            )  # fmt: skip
    collect(tmp_path)
    text = words(build_report(tmp_path, "inference", tmp_path / "out"))
    assert (
        "flash has the shortest time, 9.90 ms a token; tests do not tell it from flex ; auto the longest"
        in text
    )
    assert "The seconds of a decoded token are tested in the same way" in words(tmp_path / "out/methods.html")


def test_no_page_says_that_a_run_trained(pages: Path) -> None:
    assert not {"loss.html", "time.html"} & {page.name for page in pages.iterdir()}
    for page in pages.glob("*.html"):
        text = words(page)
        assert not re.search(r"\btrained\b|\btrains (faster|more|as)|final loss", text, re.IGNORECASE), (
            page.name
        )
    for name in (
        "index.html",
        "runs.html",
        "prefill.html",
        "decoding.html",
        "comparison.html",
        "run-auto1.html",
    ):
        assert not re.search("train|loss", words(pages / name), re.IGNORECASE), name


def test_the_tiers_of_the_overview_are_in_a_ranking(pages: Path) -> None:
    for page in ("comparison.html", "print.html"):
        assert (pages / page).read_text().count('id="ranking"') == 1
    assert "Tiers by tokens per second" in words(pages / "comparison.html")


def test_methods_state_the_formula_of_a_prefill(pages: Path) -> None:
    assert "(2 N + 2 V D / T + 4 L H Q T)" in words(pages / "methods.html")
    assert "The floor" not in words(pages / "methods.html")
    assert "(6 N" not in words(pages / "methods.html") + words(pages / "mfu.html")


def test_a_text_has_the_latencies_and_no_loss(pages: Path) -> None:
    latex = pages / "latex"
    names = {path.stem for path in (latex / "tables").iterdir()}
    assert {"inference_summary", "groups", "ratios"} <= names
    assert not {"losses", "training_metrics", "training_summary"} & names
    assert "Prefill, ms" in (latex / "tables" / "inference_summary.tex").read_text()
    text = (latex / "methods.tex").read_text() + (latex / "report.tex").read_text()
    assert not re.search(r"\btrain|loshchilov|\bloss", text, re.IGNORECASE)


def test_a_report_is_made_again_from_its_records(pages: Path) -> None:
    assert not audit(pages).findings


def test_a_study_of_training_has_none_of_these_figures(tmp_path: Path) -> None:
    completed(tmp_path / "runs", "r1")
    collect(tmp_path / "runs")
    report = build_report(tmp_path / "runs", "backends", tmp_path / "out").parent
    assert not {"prefill.html", "decoding.html"} & {page.name for page in report.iterdir()}


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """auto and custom, on a GPU whose ceilings are known; custom decodes nothing."""
    folder = tmp_path_factory.mktemp("runs")
    for backend, decode in (("auto", 0.01), ("custom", None)):
        inferred(folder, backend, 0.1, decode, profiled=True, group=backend, factors={"attention": backend})
    collect(folder)
    return folder


def test_a_report_says_of_which_backend_profiled_prefills_were_slower_than_timed_ones(tmp_path: Path) -> None:
    for backend in ("auto", "custom"):
        folder = inferred(tmp_path, backend, profiled=True, group=backend, factors={"attention": backend})
    profile(folder, decoded={"products": 0.01}, products=0.15)
    collect(tmp_path)
    report = build_report(tmp_path, "inference", tmp_path / "out").parent
    assert "shows prefills profiled after the run. Those of custom (+50.0 %) took over 10 %" in words(
        report / "index.html"
    )
    assert "In 1 of 2 groups these took over 10 % longer or shorter" in words(report / "prefill.html")
    assert not audit(report).findings


def test_a_token_whose_attention_was_not_seen_in_its_cuda_graph_has_no_bar(tmp_path: Path) -> None:
    """Older records tell a graph's kernels by their names: the softmax of `math` would be elementwise."""
    for backend in ("auto", "math"):
        inferred(
            tmp_path, backend, profiled=True, cuda_graphs=True, group=backend, factors={"attention": backend}
        )
    collect(tmp_path)
    report = build_report(tmp_path, "inference", tmp_path / "out").parent
    assert draw(tmp_path, "decode_profile", "inference") is None
    assert "Largest part of a prefill: matrix products, 60 %" in words(report / "prefill.html")
    assert not audit(report).findings


def test_a_caption_says_how_far_bars_are_from_timed_prefills_and_how_a_graphs_token_was_timed(
    tmp_path: Path,
) -> None:
    """A prefill of 102.6 ms in its parts, 100 timed; a token of 10.05 ms, 10 timed."""
    folder = inferred(tmp_path, "auto", cuda_graphs=True, group="auto", factors={"attention": "auto"})
    profile(folder, decoded={"products": 0.01005}, by_name=False, products=0.1026)
    collect(tmp_path)
    prefill, token = (
        figure.caption
        for name in ("prefill_profile", "decode_profile")
        if (figure := draw(tmp_path, name, "inference"))
    )
    assert "The bars are up to 2.6 % longer or shorter than the timed prefill." in prefill
    assert "graphs" not in prefill and "The bars are" not in token
    assert (
        "These were in CUDA graphs, as the run's; their kernels were timed in more, launched one by one."
        in token
    )


def test_a_caption_names_the_groups_whose_tokens_were_in_graphs_and_counts_timed_runs(tmp_path: Path) -> None:
    """Of three runs of auto, one has no timed token: of two in the middle the shorter is drawn."""
    for repeat in (1, 2, 3):
        folder = inferred(
            tmp_path, "auto", 0.1, 0.01 if repeat < 3 else None,
            run_id=f"auto{repeat}", group="auto", repeat=repeat, cuda_graphs=True, factors={"attention": "auto"},
        )  # fmt: skip
        profile(folder, decoded={"products": 0.01}, by_name=False, products=0.1)
    folder = inferred(tmp_path, "flash", group="flash", factors={"attention": "flash"})
    profile(folder, decoded={"products": 0.01}, by_name=False, products=0.1)
    collect(tmp_path)
    token, prefill = (draw(tmp_path, f"{name}_profile", "inference") for name in ("decode", "prefill"))
    assert token and "Those of auto were in CUDA graphs" in token.caption
    assert prefill and "graphs" not in prefill.caption
    assert "(of two, the shorter)" in token.caption and "(of two" not in prefill.caption


@pytest.mark.parametrize(
    ("name", "labels", "products", "phase", "noun"),
    [
        ("prefill_profile", ["auto", "auto: floor", "custom", "custom: floor"], 60, "step", "prefill"),
        ("decode_profile", ["auto", "auto: floor"], 6, "decode", "decoded token"),
    ],
)
def test_a_prefill_and_a_decoded_token_have_a_bar_of_parts_beside_their_floor(
    profiled: Path, name: str, labels: list[str], products: float, phase: str, noun: str
) -> None:
    figure = draw(profiled, name, "inference")
    assert figure and figure.table and noun in figure.caption
    parts_by_bar = bars(figure)
    assert list(parts_by_bar) == labels
    assert parts_by_bar["auto"]["matrix products"] == pytest.approx(products)
    assert set(parts_by_bar["auto: floor"]) == set(parts_by_bar["auto"]) - {"idle"}
    with store.open_for_reading(profiled) as connection:
        least = connection.sql(
            f"SELECT sum(seconds) FROM step_floor WHERE phase = '{phase}' AND run_id LIKE 'auto%'"
        ).fetchall()[0][0]
    assert sum(parts_by_bar["auto: floor"].values()) == pytest.approx(1000 * least)
    row = dict(zip(figure.table.columns, figure.table.rows[0], strict=True))
    assert row[f"timed {noun}, ms"] == row["whole, ms"] == f"{products / 0.6:.2f}"
    assert float(row[f"floor, % of the timed {noun}"]) == pytest.approx(
        100 * 1000 * least * 0.6 / products, abs=0.5
    )
    assert not any("loss" in column or "optimizer" in column for column in figure.table.columns)


@pytest.mark.parametrize(
    ("name", "latency", "column"),
    [
        ("prefill_profile", "prefill_latency", "timed prefill, ms"),
        ("decode_profile", "decode_latency", "timed decoded token, ms"),
    ],
)
def test_the_bar_of_parts_is_of_the_run_whose_time_the_other_figures_show(
    tmp_path: Path, name: str, latency: str, column: str
) -> None:
    """By its profiled time another run is in the middle: that of 200 ms, and of 30 ms a token."""
    for repeat, (slower, parts) in enumerate(((1, 0.3), (2, 0.1), (3, 0.2)), start=1):
        folder = inferred(
            tmp_path, "auto", 0.1 * slower, 0.01 * slower,
            run_id=f"auto{repeat}", group="auto", repeat=repeat, factors={"attention": "auto"},
        )  # fmt: skip
        profile(folder, decoded={"products": parts / 10}, products=parts)
    collect(tmp_path)
    profiled, timed = draw(tmp_path, name, "inference"), draw(tmp_path, latency, "inference")
    assert profiled and profiled.table and timed and timed.table
    (row,) = (dict(zip(profiled.table.columns, row, strict=True)) for row in profiled.table.rows)
    assert float(row[column]) == float(timed.table.rows[0][2])
    assert row["whole, ms"] == row["matrix products, ms"] == ("100.00" if "prefill" in name else "10.00")


def test_a_report_has_the_profiles_on_the_pages_of_prefills_and_of_decoding(
    profiled: Path, tmp_path: Path
) -> None:
    report = build_report(profiled, "inference", tmp_path / "out").parent
    overview, run = (
        words(report / f"{name}.html").replace("\N{NO-BREAK SPACE}", " ").replace("&nbsp;", " ")
        for name in ("index", "run-auto-infers")
    )
    with store.open_for_reading(profiled) as connection:
        ((floor, decode_floor),) = connection.sql(
            "SELECT floor_percentage, decode_floor_percentage FROM runs WHERE attention = 'auto'"
        ).fetchall()
    assert f"{floor:.1f}" in overview and f"{decode_floor:.1f}" in overview
    assert f"{floor:.1f} % of the median prefill" in run and f"{decode_floor:.1f} % of that" in run
    assert "The floor of a prefill" in words(report / "methods.html")
    assert "longer than the timed ones" not in overview
    assert "Largest part of a prefill" in words(report / "prefill.html")
    assert "Largest part of a decoded token" in words(report / "decoding.html")
    assert not (report / "time.html").exists()
    assert not audit(report).findings
