"""Errors in other people's logs are found, named and argued with their numbers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from analysis.importers import ImportDesign, RunRecords, write_runs
from analysis.importers._study import compare_runs, outlier_evidence
from tests.analysis.importers import made
from tests.analysis.importers.made import COMPILED, FLOP, PEAK, Record, findings


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunRecords]:
    """The five runs, as they are after an import with a margin of 0.02 nats."""
    folder = tmp_path_factory.mktemp("five")
    logs = [log for path in made.five(folder / "logs") for log in made.read(path)]
    written = write_runs(folder / "root", "theirs", logs, ImportDesign({"loss": 0.02}))
    return {entry.log.name: entry.log for entry in written}


def test_the_run_that_learns_something_else_is_named_with_its_steps_and_the_others_are_equivalent(
    five,
) -> None:
    (loss_finding,) = findings(five["fa3"], "loss", "error")
    assert loss_finding.startswith("fa3: its loss against the median of 4 others is different: +0.0")
    assert "beyond the margin of 0.02 nats" in loss_finding
    assert "over steps 1-100" in loss_finding
    assert "All count the same training tokens at every step." in loss_finding
    for name in ("baseline", "cudnn", "efficient", "fa"):
        (sentence,) = findings(five[name], "loss")
        assert sentence.startswith(f"{name}: its loss against the median of 3 others is equivalent")
        assert not findings(five[name], "loss", "error")


def test_without_a_margin_the_outlier_is_still_an_error_and_nobody_else(five) -> None:
    findings_by_run = compare_runs(list(five.values()), None)
    wrong_runs = {
        run_id
        for run_id, run_findings in findings_by_run.items()
        if any(finding.level == "error" for finding in run_findings)
    }
    assert wrong_runs == {five["fa3"].run.run_id}
    (sentence,) = [
        finding.sentence for finding in findings_by_run[five["fa3"].run.run_id] if finding.check == "loss"
    ]
    assert "standard deviation is" in sentence
    assert "--margin loss=NATS" in sentence


def test_equal_runs_are_called_outliers_in_at_most_one_study_of_a_hundred() -> None:
    import numpy as np

    draw = np.random.default_rng(0)
    studies, outliers = 1000, 0
    for _ in range(studies):
        means = draw.normal(6.7, 0.01, 5).tolist()
        outliers += any(
            outlier_evidence(mean, [*means[:row], *means[row + 1 :]]) for row, mean in enumerate(means)
        )
    assert 0.001 < outliers / studies <= 0.02  # 1 % is stated; three standard errors above it


def test_runs_on_other_texts_are_not_compared(tmp_path: Path) -> None:
    other_records = [{**record, "training_tokens_percentage": 50.0} for record in made.records("cudnn")]
    for record in other_records:
        record["training_tokens_per_second"] = record["tokens_per_second"] / 2
    paths = [
        made.write(tmp_path / "a.jsonl", made.records("baseline")),
        made.write(tmp_path / "b.jsonl", other_records),
    ]
    runs = [log for path in paths for log in made.read(path)]
    sentences = [
        finding.sentence
        for run_findings in compare_runs(runs, 0.02).values()
        for finding in run_findings
        if finding.check == "loss"
    ]
    assert len(sentences) == 2
    assert all("they read another text" in sentence for sentence in sentences)


def test_a_run_that_ended_early_does_not_shorten_the_comparison_of_the_others(tmp_path: Path) -> None:
    lengths = [("fa3", 1000), ("cudnn", 1000), ("fa", 100), ("baseline", 1000), ("efficient", 1000)]
    paths = [
        made.write(tmp_path / f"{name}_20250525_101529.jsonl", made.records(name, last=last))
        for name, last in lengths
    ]
    runs = [log for path in paths for log in made.read(path)]
    findings_by_name = {log.name: compare_runs(runs, 0.02)[log.run.run_id][0] for log in runs}
    assert findings_by_name["fa3"].level == "error"
    assert "against the median of 3 others" in findings_by_name["fa3"].sentence
    assert {name for name, finding in findings_by_name.items() if finding.level == "error"} == {"fa3"}
    assert "4 records, at least 24 needed" in findings_by_name["fa"].sentence


def test_logs_that_differ_by_their_names_alone_are_compared_only_if_a_margin_says_that_they_should_be_equal(
    tmp_path: Path,
) -> None:
    paths = [
        made.write(tmp_path / f"{name}.jsonl", made.records(name))
        for name in ("fa3", "cudnn", "fa", "baseline")
    ]
    runs = [log for path in paths for log in made.read(path)]
    assert runs[0].run.factors == {"log": "fa3"}
    assert compare_runs(runs, None) == {log.run.run_id: [] for log in runs}
    levels = {log.name: compare_runs(runs, 0.02)[log.run.run_id][0].level for log in runs}
    assert levels == {"fa3": "error", "cudnn": "note", "fa": "note", "baseline": "note"}


def test_the_flop_per_token_of_five_logs_is_one_and_its_formula_is_found_without_a_shape(five) -> None:
    first, same = findings(five["cudnn"], "flop_per_token", "note")
    assert "counts 51.541 GFLOP per token: 6 N + 12 L H Q T, N without the input embedding" in first
    assert first.endswith("So its MFU is correct, over a peak of 989.0 TFLOP/s.")
    assert same == "The 5 logs that imply a FLOP per token agree: 51.541 GFLOP."
    assert (five["cudnn"].manifest.flop_per_token, round(five["cudnn"].manifest.peak_flops or 0)) == (
        FLOP,
        PEAK,
    )


def test_a_compiled_run_that_counts_the_embedding_is_an_error_with_the_true_mfu_beside_the_printed_one(
    tmp_path: Path,
) -> None:
    paths = [
        made.write(tmp_path / "plain_20250525_101529.jsonl", made.records("baseline")),
        made.write(tmp_path / "compiled_20250525_101529.jsonl", made.records("cudnn", flop=COMPILED)),
    ]
    logs = [log for path in paths for log in made.read(path)]
    plain, compiled = (entry.log for entry in write_runs(tmp_path / "root", "theirs", logs, ImportDesign({})))
    sentence, other_sentence = findings(compiled, "flop_per_token", "error")
    assert (
        "compiled: the log counts 54.76 GFLOP per token, which is 6 N + 12 L H Q T with the input embedding"
        in sentence
    )
    assert "3.22 GFLOP too many" in sentence
    assert "correct count is 51.54" in sentence
    printed = compiled.run.imported.printed["mfu"]
    assert f"Its mean MFU of {printed:.2f} % is really {printed * FLOP / COMPILED:.2f} %." in sentence
    assert "others of the same configuration do not (plain 51.54)" in other_sentence
    assert findings(plain, "flop_per_token", "error")[0].endswith("their MFU and TFLOP/s are not comparable.")


def test_the_shape_in_a_mapping_decides_which_count_is_right(tmp_path: Path) -> None:
    shape = {"dim": 2048, "layers": 16, "heads": 32, "kv_heads": 8, "ffn_dim": 8192, "vocab_size": 128256}
    mapping = {"config": {"model": shape, "train": {"sequence_length": 4096, "batch_size": 1, "dtype": "bfloat16"}},
               "constants": {"gpu": "NVIDIA H100 PCIe"}}  # fmt: skip
    (log,) = made.read(made.write(tmp_path / "a.jsonl", made.records()), mapping=mapping)
    (sentence,) = findings(log, "flop_per_token", "error")
    assert "counts 51.54 GFLOP per token; the correct count is" in sentence
    assert log.manifest.flop_per_token != FLOP
    (peak,) = findings(log, "metrics", "error")
    assert "a peak of 989.0 TFLOP/s, but that is 756.0 (NVIDIA H100 datasheet, PCIe, dense)" in peak
    assert log.manifest.peak_flops == 756e12


def test_the_warm_up_in_the_averages_is_named_with_both_means(five) -> None:
    (sentence,) = findings(five["baseline"], "warm-up")
    assert "the first record" in sentence
    assert "step 1) took" in sentence
    printed = five["baseline"].run.imported.printed["tokens_per_second"]
    assert f"tokens_per_second {printed:,.1f} over all" in sentence


def _tokens(records: list[Record]) -> None:
    records[20]["tokens_per_second"] *= 1.1
    records[20]["training_tokens_per_second"] *= 1.1
    records[20]["mfu"] *= 1.1
    records[20]["tflops"] *= 1.1


def _tflops(records: list[Record]) -> None:
    records[30]["tflops"] *= 2
    records[30]["mfu"] *= 2


def _mfu(records: list[Record]) -> None:
    records[40]["mfu"] *= 1.5


def _padding(records: list[Record]) -> None:
    records[50]["training_tokens_percentage"] *= 0.9


def _fast_clock(records: list[Record]) -> None:
    for second, record in enumerate(records):
        record["timestamp"] = str(made.START + timedelta(seconds=second)).removesuffix("+00:00")


@pytest.mark.parametrize(
    "spoil, check, words",
    [
        (_tokens, "metrics", "tokens_per_second x seconds / steps is 4,096.0 tokens in most records, but 4,505.6 at step 100"),
        (_tflops, "flop_per_token", "GFLOP per token at step"),
        (_mfu, "metrics", "tflops / mfu is a peak of 659.3 TFLOP/s at step 200"),
        (_padding, "metrics", "step 250: training_tokens_percentage is"),
        (_fast_clock, "metrics", "the log's clock counts 200.0 s from step 1 to step 1000"),
    ],
)  # fmt: skip
def test_metrics_that_disagree_are_named_with_the_line(
    tmp_path: Path, spoil: Callable[[list[Record]], None], check: str, words: str
) -> None:
    records = made.records()
    spoil(records)
    (log,) = made.read(made.write(tmp_path / "a.jsonl", records))
    errors = [finding.sentence for finding in log.run.imported.findings if finding.level == "error"]
    assert any(words in sentence for sentence in errors), errors


def test_rates_against_the_tokens_that_the_mapping_states(tmp_path: Path) -> None:
    mapping: dict[str, Any] = {"constants": {"tokens_per_step": 8192}}
    (log,) = made.read(made.write(tmp_path / "a.jsonl", made.records()), mapping=mapping)
    (sentence,) = findings(log, "metrics", "error")
    assert "a.jsonl:1, step 1:" in sentence
    assert "are 4,096 tokens; 1 step should have 8,192." in sentence


def test_time_outside_of_the_measured_steps_is_a_note(tmp_path: Path) -> None:
    records = made.records()
    for index, record in enumerate(records):
        clock = made.START + timedelta(seconds=4 * index)
        record["timestamp"] = str(clock).removesuffix("+00:00")
    (log,) = made.read(made.write(tmp_path / "a.jsonl", records))
    (note,) = findings(log, "metrics", "note")
    assert "of the time counts in no rate" in note
    assert not findings(log, "metrics", "error")


def test_a_sound_log_has_no_error(tmp_path: Path) -> None:
    (log,) = made.read(made.write(tmp_path / "a.jsonl", made.records()))
    assert [finding.sentence for finding in log.run.imported.findings if finding.level == "error"] == []
    assert log.run.imported.not_imported == []


SHAPE = {
    "model": {"dim": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "ffn_dim": 14336, "vocab_size": 131072},
    "train": {"steps": 1000, "sequence_length": 4096, "batch_size": 1, "dtype": "bfloat16"},
}
AVERAGES = """Model,Tokens/sec,Train Token %,MFU %,TFLOPs
Baseline (standard),7893.10,22.59,41.13,406.82
FlashAttention3,8127.71,22.59,42.36,418.91
"""


def _averages(folder: Path, text: str, mapping: dict[str, Any]) -> list[RunRecords]:
    (folder / "averages.csv").write_text(text)
    return made.read(folder / "averages.csv", "csv", mapping)


def test_a_papers_table_of_averages_is_imported_with_its_rates_and_no_correct_row_is_called_wrong(
    tmp_path: Path,
) -> None:
    for mapping in ({"config": SHAPE, "constants": {"gpus": 1}}, {"config": {"train": {"steps": 1000}}}):
        runs = _averages(tmp_path, AVERAGES, mapping)
        assert [run.run.imported.part for run in runs] == ["Baseline (standard)", "FlashAttention3"]
        assert [run.steps[0].tokens_per_second for run in runs] == pytest.approx([7893.10, 8127.71])
        notes = [finding for run in runs for finding in run.run.imported.findings]
        assert {finding.level for finding in notes} == {"note"}, notes
        assert any("averages that include the warm-up" in finding.sentence for finding in notes)
        assert [
            notes.level for run_findings in compare_runs(runs, None).values() for notes in run_findings
        ] in (
            [],
            ["note"] * 2,
        )


@pytest.mark.parametrize("tflops, is_wrong", [("418.91", False), ("418.9", False), ("419", False), ("418.93", True), ("445.07", True), ("420", True)])  # fmt: skip
def test_a_count_is_wrong_if_the_digits_that_were_printed_say_so(
    tflops: str, is_wrong: bool, tmp_path: Path
) -> None:
    text = AVERAGES.replace("418.91", tflops)
    _, run = _averages(tmp_path, text, {"config": SHAPE, "constants": {"gpus": 1}})
    assert bool(findings(run, "flop_per_token", "error")) == is_wrong
    if is_wrong:
        assert "-0.0 %" not in findings(run, "flop_per_token", "error")[0]


@pytest.mark.parametrize("digits", [1, 2, 3, 6])
def test_a_sound_log_has_no_error_at_any_number_of_printed_digits(digits: int, tmp_path: Path) -> None:
    """Also of single precision, which has seven digits and prints sixteen."""
    import numpy as np

    for single in (False, True):
        records = [
            {
                name: float(np.float32(value)) if single else round(value, digits)
                for name, value in record.items()
                if isinstance(value, float)
            }
            | {"step": record["step"], "timestamp": record["timestamp"]}
            for record in made.records()
        ]
        (log,) = made.read(made.write(tmp_path / "a.jsonl", records), mapping={"config": SHAPE})
        assert [finding.sentence for finding in log.run.imported.findings if finding.level == "error"] == []
