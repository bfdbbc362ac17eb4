"""What a text takes from a report: it compiles, says what the pages say, and drops no character in silence."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from analysis.audit.audit import audit
from analysis.query.latex import breakable, escaped, said, tabular
from analysis.report.answer.statement import Number
from analysis.report.build import build_report
from analysis.report.facts import GroupFacts
from analysis.report.tasks import training
from analysis.stats import Estimate, over_runs, within_run
from analysis.store.collect import collect
from analysis.verdicts.groups import peak_memory_gib
from analysis.wording import readable
from analysis.writeup import numbers, references
from analysis.writeup.tables import ends, table
from analysis.writeup.write import write
from model.record import backends
from model.record.case import FP8
from model.record.reported import Reported
from tests.analysis.charts.test_kernel_fp8 import measured
from tests.analysis.demo import write_demo
from tests.analysis.fabricate import completed
from tests.analysis.sought import frontier
from tests.oracle.records import options

TEX = pytest.mark.skipif(
    not all(map(shutil.which, ("pdflatex", "bibtex", "pdftotext", "pdffonts"))),
    reason="needs TeX: apt install texlive-latex-recommended lmodern poppler-utils",
)
EVIL = '\\input{/etc/passwd} 100% a_b #1 ${x}^2 ~ & <b> [x]* "q" --flag \N{GRINNING FACE} \u200f\u05d0 \u2028 é β `code'


def compiled(folder: Path) -> str:
    """The text of report.pdf, compiled as its first line says."""
    for command in (["pdflatex"], ["bibtex"], ["pdflatex"], ["pdflatex"]):
        options = ["-interaction=nonstopmode", "-halt-on-error"] if command == ["pdflatex"] else []
        process = subprocess.run(
            [*command, *options, "report"],
            check=False,
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
        )
        assert process.returncode == 0, process.stdout[-3000:]
    log = (folder / "report.log").read_text(errors="replace")
    assert "undefined" not in log
    assert "pdfTeX warning" not in log
    fonts = subprocess.run(["pdffonts", "report.pdf"], cwd=folder, capture_output=True, text=True, check=True)
    rows = [row.split() for row in fonts.stdout.splitlines()[2:]]
    assert rows
    assert all(row[-5] == "yes" for row in rows), "a font is not embedded"
    text = subprocess.run(
        ["pdftotext", "-layout", "report.pdf", "-"], cwd=folder, capture_output=True, text=True, check=True
    )
    return text.stdout


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo, and a study whose every text is hostile."""
    root = tmp_path_factory.mktemp("runs")
    write_demo(root)
    for place, label in enumerate((EVIL, "A" * 4000)):
        factors = {"note": label, "seed": 0}
        completed(root, f"e{place}", study="evil", title=EVIL, description=EVIL, factors=factors)
    collect(root)
    return root


@pytest.fixture(scope="module")
def report(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_report(root, "backends", tmp_path_factory.mktemp("out") / "it", extra=write).parent


@TEX
def test_the_document_compiles_and_says_what_the_pages_say(report: Path, tmp_path: Path) -> None:
    shutil.copytree(report / "latex", tmp_path / "latex")
    text = compiled(tmp_path / "latex")
    for words in ("Attention backends compared", "Answer", "cudnn", "Figure 1", "References", "Holm"):
        assert words in text
    assert "\N{MINUS SIGN}" in text


def test_the_tables_of_all_pages_are_there_and_in_the_document(report: Path) -> None:
    """Those of the first page alone were."""
    tables = {path.stem for path in (report / "latex" / "tables").iterdir()}
    pages = "".join(path.read_text() for path in report.glob("*.html"))
    figures = {f"figure_{name}" for name in re.findall(r'href="data/(\w+)\.csv"', pages)}
    drawn_figures = {
        name for name in figures if (report / "figures" / f"{name.removeprefix('figure_')}.svg").exists()
    }
    assert {"ranking", "pairs", "ratios", "figure_tokens_per_second", *drawn_figures} <= tables
    document = (report / "latex" / "report.tex").read_text()
    assert {*re.findall(r"\\input\{tables/(\w+)\}", document)} == tables


@TEX
def test_a_study_of_attention_alone_has_its_shapes_and_compiles(tmp_path: Path) -> None:
    measured(tmp_path, ("bfloat16", FP8))
    latex = build_report(tmp_path, "kernels", tmp_path / "report", extra=write).parent / "latex"
    tables = {path.stem: path.read_text() for path in (latex / "tables").iterdir()}
    assert {"groups", "shapes_graph", "shapes_eager"} <= tables.keys()
    assert "& forward &" in tables["shapes_graph"] and "custom" in tables["groups"]
    compiled(latex)


@TEX
def test_hostile_text_compiles_and_is_still_there(root: Path, tmp_path: Path) -> None:
    report = build_report(root, "evil", tmp_path / "evil", extra=write).parent
    text = " ".join(compiled(report / "latex").split())
    log = (report / "latex" / "report.log").read_text(errors="replace")
    assert max(map(float, re.findall(r"^Overfull \\hbox \(([\d.]+)pt", log, re.M)), default=0) < 80
    for words in ("\\input{/etc/passwd} 100% a_b #1 ${x}^2", "--flag", "U+1F600", "U+200F", "U+2028"):
        assert words in text


@TEX
def test_what_each_setting_changes_alone_is_a_table_and_in_the_text(tmp_path: Path) -> None:
    options(tmp_path)
    collect(tmp_path)
    latex = build_report(tmp_path, "options", tmp_path / "report", extra=write).parent / "latex"
    lines = (latex / "tables" / "steps.tex").read_text().splitlines()
    ratios = [line.split(" & ")[:3] for line in lines if line.startswith(("compile", "loss"))]
    assert [(re.sub(r"\\allowbreak|{}", "", setting), other) for setting, other, _ in ratios] == [
        ("compile=true", "eager"),
        ("compile=true", "joined"),
        (r"loss=linear\_cross\_entropy", "eager"),
        (r"loss=linear\_cross\_entropy", "compiled"),
    ]
    assert float(ratios[0][2]) == pytest.approx(1 / 0.9, abs=1e-3)
    assert "One setting at a time" in " ".join(compiled(latex).split())


def test_a_task_without_rates_has_its_own_table_of_groups(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    frontier(root, "r1", "flash", 8192, {8192: "fits", 9216: "oom_gpu", 8704: "fits", 8960: "edge"})
    frontier(root, "r2", "math", 2048, {2048: "timeout", 1792: "fits"})
    collect(root)
    latex = build_report(root, "frontier", tmp_path / "pages", extra=write).parent / "latex"
    groups, methods, macros = (
        (latex / name).read_text() for name in ("tables/groups.tex", "methods.tex", "numbers.tex")
    )
    row = r"flash & tokens per sample & 8,704 & 8,192 & \ensuremath{-}5.9 & 8,960 (edge) \\"
    assert row in groups
    assert "math & tokens per sample & at least 1,792 & 2,048 & \N{EN DASH} & 2,048 (timeout)" in groups
    assert "$n$" not in groups and "measured rate" not in macros and "8{,}704" in macros
    assert r"of three training steps of a llama~\cite{touvron2023llama}." in methods
    assert "A probe is a process of its own" in methods


@pytest.fixture(scope="module")
def quoting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The text of a study that quotes others, with a hostile source."""
    root = tmp_path_factory.mktemp("quoting")
    entry = Reported(
        numbers={"tokens_per_second": "8127.71", "mfu": "142.36", "final_loss": "9.50"},
        hardware="GH200 & 120_GB",
        source=EVIL,
        read_from="plot",
        note="100% no such card",
    )
    for seed in range(2):
        completed(root, f"a{seed}", attention="auto", seed=seed, reported=[entry])
    collect(root)
    return build_report(root, "backends", root / "pages", extra=write).parent / "latex"


def test_what_others_report_is_a_table_with_its_digits_and_what_is_wrong_with_it(quoting: Path) -> None:
    latex = (quoting / "tables" / "reported.tex").read_text()
    rows = [line for line in latex.splitlines() if line.endswith(r"\\")]
    assert rows[1].startswith(r"auto & Tokens/s & 8127.71 & 10,240 & 1.26 & GH200 \& 120\_GB & ")
    assert rows[1].endswith(r", read from a plot \\")
    assert r" & Final loss & 9.50 & 9.0000 & \ensuremath{-}0.5000 &  &  \\" in rows
    assert any(r"\emph{Flagged: mfu is 142.36" in row for row in rows)
    assert any(r"\emph{Note of the study: 100\% no such card}" in row for row in rows)
    assert "They are in no comparison, ranking or verdict." in latex
    assert r"\input{tables/reported}" in (quoting / "report.tex").read_text()


@TEX
def test_a_study_that_quotes_others_compiles(quoting: Path, tmp_path: Path) -> None:
    shutil.copytree(quoting, tmp_path / "latex")
    assert "8127.71" in compiled(tmp_path / "latex")
    log = (tmp_path / "latex" / "report.log").read_text(errors="replace")
    assert max(map(float, re.findall(r"^Overfull \\hbox \(([\d.]+)pt", log, re.M)), default=0) < 5


def test_every_number_has_a_name_of_letters_and_no_name_comes_twice(report: Path) -> None:
    names = re.findall(r"\\newcommand{\\([^}]*)}", (report / "latex" / "numbers.tex").read_text())
    assert len(names) > 50
    assert len(names) == len(set(names))
    assert all(name.isascii() and name.isalpha() for name in names)
    assert "BackendsFlashThreeTokensPerSecondInterval" in names


def test_a_cited_number_is_that_of_the_overview(report: Path) -> None:
    page = (report / "index.html").read_text()
    overview_number = re.search(r'<th scope="row">cudnn</th>\s*<td class="n">(\d+,\d+) ', page, re.S)
    cited_number = re.search(
        r"\\BackendsCudnnTokensPerSecond}{(.*)}", (report / "latex" / "numbers.tex").read_text()
    )
    assert overview_number
    assert cited_number
    assert cited_number[1].replace("{,}", ",") == overview_number[1]


def test_names_are_control_words_whatever_a_group_is_called() -> None:
    assert numbers.control_word("flash3") == "FlashThree"
    assert numbers.control_word("lr=-0.5, seq_len=1024") == "LrMinusZeroPointFiveSeqLenOneZeroTwoFour"
    assert numbers.control_word("\N{GRINNING FACE} é") == "GrinningFaceE"


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (Number("it", "percent", -5.224, -5.542, -4.906), ("-5.22", "-5.54", "-4.91")),
        (Number("it", "percent", 0.3), ("+0.3", None, None)),
        (Number("it", "nats per token", -0.00033), ("-0.0003", None, None)),
        (Number("it", "percent", 1.7, 0.996, 2.5, margin=1.0), ("+1.700", "+0.996", "+2.500")),
        (Number("it", "percent", -0.4, -0.97, 0.1, margin=1.0), ("-0.40", "-0.97", "+0.10")),
        (
            Number("it", "nats per token", 0.004, 0.003, 0.004996, margin=0.005),
            ("+0.004000", "+0.003000", "+0.004996"),
        ),
        (Number("it", "tokens per second", 10445.3), ("10,445", None, None)),
        (Number("it", "percent", -99.7), ("-99.7000", None, None)),
        (Number("it", "parameters", 8053329920), ("8,053,329,920", None, None)),
    ],
)
def test_a_number_of_a_sentence_is_cited_with_the_digits_of_the_sentence(
    number: Number, expected: tuple[str | None, ...]
) -> None:
    macro = numbers._sentence_macro(number)
    assert (macro.value, macro.low, macro.high) == expected


@pytest.mark.parametrize(
    ("value", "form", "expected"),
    [
        (0.4, ",.0f", "0.400"), (9.96, ",.0f", "9.96"), (12.3, ",.0f", "12"), (10445.3, ",.0f", "10,445"),
        (0.0123, ".1f", "0.0123"), (0, ".1f", "0.0"), (3e-12, ".1f", "3.00e-12"), (0.0002, "+.4f", "+0.0002"),
    ],
)  # fmt: skip
def test_no_rate_however_small_is_cited_as_zero(value: float, form: str, expected: str) -> None:
    assert readable(value, form) == expected


def group_macros(group: GroupFacts) -> dict[str, numbers.Macro]:
    """What can be cited of a group, by its words."""
    facts, answer = SimpleNamespace(groups=[group]), SimpleNamespace(numbers=[])
    contents = SimpleNamespace(facts=facts, answer=answer, task=training.TASK)
    return {macro.name: macro for macro in numbers.macros(contents)}  # type: ignore[arg-type]


def test_a_slow_group_s_rate_is_cited_with_three_digits() -> None:
    rate = Estimate(0.4, 0.39, 0.41, 6, "it")
    macro = group_macros(GroupFacts("auto", 6, 6, rate, None, None, None))["auto tokens per second"]
    assert (macro.value, macro.low, macro.high) == ("0.400", "0.390", "0.410")


def test_the_peak_memory_of_several_runs_is_cited_with_its_interval() -> None:
    runs = [{"peak_memory_bytes": gib * 2**30} for gib in (70.0, 71.0, 72.0)]
    memory = group_macros(GroupFacts("auto", 3, 0, None, None, peak_memory_gib(runs), None))[
        "auto peak memory"
    ]
    assert (memory.value, memory.low, memory.high) == ("71.0", "68.6", "73.5")
    assert "GiB: median; 95 % t interval of the geometric mean over 3 runs" in memory.comment


@pytest.mark.fault
def test_of_runs_with_an_interval_that_no_figure_shows_the_range_is_cited_and_never_as_an_interval() -> None:
    wide = over_runs([10.0, 4000.0])
    macros = group_macros(GroupFacts("auto", 2, 2, wide, wide, wide, wide))
    rate = macros["auto tokens per second"]
    assert (rate.low, rate.high, rate.is_range) == ("10", "4,000", True)
    assert all(macro.is_range for name, macro in macros.items() if name != "auto runs")
    assert "median; no interval, but the range of all 2 runs" in macros["auto MFU"].comment


def test_a_range_of_all_records_is_cited_as_one_and_never_as_an_interval() -> None:
    ramp = within_run([1000.0 + step for step in range(101)])
    steady = over_runs([9.0, 10.0, 11.0])
    groups = [GroupFacts(name, 1, 1, rate, None, None, None) for name, rate in (("a", ramp), ("b", steady))]
    sentence_numbers = [
        Number("rate of c", "percent", 3.0, 1.0, 5.0, is_range=True),
        Number("rate of d", "percent", 3.0, 1.0, 5.0),
    ]
    facts, answer = SimpleNamespace(groups=groups, study="it"), SimpleNamespace(numbers=sentence_numbers)
    text = numbers.commands(SimpleNamespace(facts=facts, answer=answer, task=training.TASK))  # type: ignore[arg-type]
    macros = dict(re.findall(r"\\newcommand{\\It([A-Za-z]+)}{(.*)}", text))
    assert macros["ATokensPerSecondRange"] == "1{,}000 to 1{,}100"
    assert (macros["ATokensPerSecondRangeLow"], macros["ATokensPerSecondRangeHigh"]) == (
        "1{,}000",
        "1{,}100",
    )
    assert macros["RateOfCRange"] == "+1.0 to +5.0"
    assert {name for name in macros if name.endswith("Interval")} == {
        "BTokensPerSecondInterval",
        "RateOfDInterval",
    }
    assert {name for name in macros if name.endswith("High") and "Range" not in name} == {
        "BTokensPerSecondHigh",
        "RateOfDHigh",
    }


def test_a_long_identifier_breaks_at_its_punctuation_and_a_hash_anywhere() -> None:
    assert breakable("train.sequence_length=256") == (
        r"train.\allowbreak{}sequence\_\allowbreak{}length=\allowbreak{}256"
    )
    assert breakable("a1b2" * 10).count("allowbreak") == 3
    assert (
        breakable("interpolated words of a sentence, 10,445.2")
        == "interpolated words of a sentence, 10,445.2"
    )
    assert breakable(EVIL).replace(r"\allowbreak{}", "") == escaped(EVIL)


def test_columns_of_long_text_break_their_lines_and_others_do_not() -> None:
    long, short = ("a" * 40, "b", "1", "2", "3", "x"), ("a", "b", "1", "2", "3", "x")
    heads = ("",) * 6
    assert "{llrrrl}" in table("it", "", heads, [short], "llrrrl")
    assert table("it", "", heads, [short, long], "llrrrl").count("p{2.8cm}") == 1


def test_numbers_of_one_name_are_told_apart() -> None:
    used: set[str] = set()
    assert numbers._unused_name("It", used) == "It"
    assert numbers._unused_name("It", used) == "ItNoTwo"
    assert numbers._unused_name("ItLow", used) == "ItLowNoTwo"


def test_references_are_those_of_kernels_and_methods_that_were_used(report: Path) -> None:
    bib = (report / "latex" / "references.bib").read_text()
    keys = re.findall(r"@\w+{(\w+),", bib)
    assert {"chetlur2014cudnn", "shah2024flashattention3", "hoefler2015", "holm1979"} <= set(keys)
    assert "dong2024flex" not in keys
    citations = re.findall(r"\\cite{([^}]*)}", (report / "latex" / "methods.tex").read_text())
    assert {key for citation in citations for key in citation.split(",")} == set(keys)


def test_every_backend_of_ours_has_its_references() -> None:
    for name in set(backends.names()) - set(backends.foreign()):
        keys = references.of_backend(name)
        assert keys, name
        assert set(keys) <= set(references._ENTRIES)


def test_every_entry_says_who_wrote_what_when_and_where() -> None:
    for key, (kind, fields) in references._ENTRIES.items():
        assert {"author", "title", "year"} <= fields.keys(), key
        assert (
            fields.keys() & {"article": {"journal"}, "inproceedings": {"booktitle"}, "misc": {"note"}}[kind]
        ), key
        assert key.startswith(fields["author"].split(",")[0].lower().replace(" ", "")), key


def test_an_audit_reaches_the_numbers_of_a_text(report: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(report, copy)
    path = copy / "latex" / "numbers.tex"
    text = path.read_text()
    match = re.search(r"\\BackendsCudnnMFU}{([\d.]+)}", text)
    assert match
    path.write_text(text.replace(match[0], "\\BackendsCudnnMFU}{99.9}"))
    (finding,) = audit(copy).findings
    assert finding.file == "latex/numbers.tex"
    assert finding.what == "\\BackendsCudnnMFU"
    assert "99.9" in (finding.printed or "")


def test_a_document_that_was_compiled_in_its_place_is_still_audited(report: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(report, copy)
    (copy / "latex" / "report.pdf").write_text("%PDF")
    (copy / "latex" / "other.pdf").write_text("%PDF")
    result = audit(copy)
    assert [finding.file for finding in result.findings] == ["latex/other.pdf"]
    assert result.notes == ["not compared, because LaTeX made them afterwards: latex/report.pdf"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--set a_b", r"-{}-set a\_b"),
        ("50% [x]", r"50\% {[}x{]}"),
        ("\N{GRINNING FACE}\u200f", "{[}U+1F600{]}{[}U+200F{]}"),
        ("β ≤ é", r"\ensuremath{\beta} \ensuremath{\le} é"),
        ("a\n\\\\b", r"a \textbackslash{}\textbackslash{}b"),
        ("", ""),
    ],
)
def test_text_is_set_as_it_is(text: str, expected: str) -> None:
    assert escaped(text) == expected


def test_a_sentence_has_real_minus_signs_but_its_code_does_not() -> None:
    assert (
        said("`a-1` (-5 %; -5 to 2) x-1") == r"\texttt{a-1} (\ensuremath{-}5\,\%; \ensuremath{-}5 to 2) x-1"
    )


def test_a_table_has_the_rules_of_booktabs() -> None:
    lines = tabular("lr", ("a", "b"), [("x", "1")]).splitlines()
    assert lines == [
        r"\begin{tabular}{lr}", r"\toprule", r"a & b \\", r"\midrule", r"x & 1 \\", r"\bottomrule", r"\end{tabular}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("imported", "text"),
    [((False, False), "."), ((False, True), " in our own runs."), ((True, True), None)],
)
@pytest.mark.parametrize(
    ("wait", "timing"),
    [(None, "with the device synchronised at both ends"), (0.1, "by the device's own clock")],
)
def test_how_steps_were_timed_is_said_of_our_own_runs_alone(
    imported: tuple[bool, ...], text: str | None, wait: float | None, timing: str
) -> None:
    runs = [
        {
            "warmup_steps": 4,
            "step_seconds": 0.4,
            "imported": {"findings": []} if foreign else None,
            "data_wait_percentage": None if foreign else wait,
        }
        for foreign in imported
    ]
    sentence = next(training.rates(runs, lambda *_keys: ""))
    assert sentence.startswith("A step is timed") == (text is not None)
    assert text is None or sentence == f"A step is timed {timing}{text}"


def test_the_range_of_all_records_of_a_run_is_called_so() -> None:
    assert ends(within_run([1 + step / 100 for step in range(101)]), ".2f") == "range 1.00 to 2.00"
    assert ends(over_runs([1.0]), ".2f") == "--"
