"""Each promise of "Where a new thing goes" in docs/architecture.md, tried in a copy of the project.

A copy holds the packages, profiles and templates, and nothing of the original but its dependencies.
"""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import PATIENCE_SECONDS, REPOSITORY, TINY, environment
from tests.faults.test_files import SITE

PARTS = ("runner", "model", "analysis", "cluster_profiles", "reports/templates")
STUDY = TINY + "matrix: {seed: [0]}\n"


@dataclass
class House:
    """A copy of the project, to which a test adds files."""

    folder: Path

    def add(self, path: str, text: str) -> None:
        file = self.folder / path
        assert not file.exists()
        file.write_text(text)

    def run(self, *arguments: object) -> str:
        """What a command of the copy prints on stdout."""
        return self._python("-m", "runner", "--root", "runs", *map(str, arguments))

    def python(self, code: str) -> str:
        """What a line of Python prints that imports the copy."""
        return self._python("-c", code)

    def _python(self, *words: str) -> str:
        process = subprocess.run(
            [sys.executable, "-P", *words],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=environment(PYTHONPATH=f"{self.folder}:{SITE}"),
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert process.returncode == 0, f"{process.returncode}\n{process.stdout}\n{process.stderr}"
        return process.stdout

    def rows(self, query: str) -> list[dict]:
        """The rows of a query, after a collect."""
        self.run("collect")
        return json.loads(self.run("sql", query, "--format", "json"))


@pytest.fixture
def house(tmp_path, corpus):
    """A copy of the project with a text to train on and a tiny study."""
    for part in PARTS:
        shutil.copytree(REPOSITORY / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "text.parquet").symlink_to(corpus)
    (tmp_path / "tiny.yaml").write_text(STUDY)
    return House(tmp_path)


def test_the_copy_is_what_runs(house):
    house.add("model/mark.py", 'MARK = "here"\n')
    code = "import model.mark, runner, analysis; print(runner.__file__, analysis.__file__)"
    assert house.python(code).count(str(house.folder)) == 2


def test_a_verb_is_one_file(house):
    house.add(
        "runner/commands/greet.py",
        '"""Greet whoever asks."""\n\nfrom runner.commands._console import show\n\n\ndef command() -> None:\n'
        '    show("good morning")\n',
    )
    assert "Greet whoever asks" in house.run("--help")
    assert house.run("greet") == "good morning\n"


@pytest.mark.trains
def test_a_backend_is_one_file(house):
    """A second one, which declares the same, harms neither the first nor those that were there."""
    example = REPOSITORY / "examples" / "backend" / "assay_chunked.py"
    names = ["chunked", "math", "twice"]
    for name in ("chunked", "twice"):
        shutil.copy(example, house.folder / "model" / "attention" / f"{name}.py")
    (house.folder / "tiny.yaml").write_text(TINY + f"matrix: {{attention: {names}}}\n")
    house.run("launch", "tiny.yaml", "--yes")
    rows = house.rows("SELECT attention, outcome FROM runs ORDER BY attention")
    assert rows == [{"attention": name, "outcome": "completed"} for name in names]


@pytest.mark.refused
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "backend = Backend(summary='bare', unsupported_reasons=lambda case: [], attend=None)",
            "bare.py:3: `Backend(...)` lacks `launches` (the kernels that it runs): see docs/backends.md",
        ),
        ("backend = None", "attention backend 'bare' is of type NoneType, not Backend"),
        ("beckend = None", "(model/attention/bare.py) cannot be imported: AttributeError: "),
    ],
)
def test_a_backends_file_that_defines_none_is_refused_by_name(house, line, message):
    house.add("model/attention/bare.py", f'"""Nothing."""\nfrom model.attention import Backend\n{line}\n')
    code = "from model import attention\ntry: attention.load('bare')\nexcept attention.UserError as error: print(error)"
    assert message in house.python(code)


CHART = '''\
"""Runs by seed."""

from analysis.charts import Chart, Figure


def _build(rows, styles):
    values = [{"seed": str(row["seed"]), "runs": row["runs"]} for row in rows]
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "data": {"values": values},
        "mark": "bar",
        "encoding": {"x": {"field": "seed", "type": "nominal"}, "y": {"field": "runs", "type": "quantitative"}},
    }
    used = frozenset(run for row in rows for run in row["run_ids"])
    return Figure(spec, "How often a seed was used.", "One bar a seed.", "none", used)


chart = Chart(
    title="Runs of a seed",
    page="seeds",
    order=500,
    question="How often was a seed used?",
    sql="SELECT seed, count(*) AS runs, list(run_id) AS run_ids FROM runs WHERE study = $study GROUP BY seed",
    build=_build,
)
'''


def test_a_chart_is_one_file_and_a_page_that_it_names_is_there(house):
    house.add("analysis/charts/seeds.py", CHART)
    house.run("launch", "tiny.yaml", "--yes")
    house.run("report", "tiny", "--out", "pages")
    page = (house.folder / "pages" / "seeds.html").read_text(encoding="utf-8")
    assert "How often was a seed used?" in page and "Runs of a seed" in page
    assert 'href="seeds.html"' in (house.folder / "pages" / "index.html").read_text(encoding="utf-8")
    house.run("audit", "pages")


def test_a_log_format_is_one_file(house):
    house.add(
        "analysis/importers/semicolons.py",
        '"""Lines like `3;2.5`: a step and its loss."""\n\n'
        "from analysis.importers import Importer\nfrom analysis.importers._table import LogRow, LogTable\n\n\n"
        "def read(file):\n"
        "    table = LogTable(file)\n"
        "    for number, line in enumerate(file.read_text().splitlines(), 1):\n"
        '        step, loss = line.split(";")\n'
        '        table.rows.append(LogRow(number, {"step": step, "loss": loss}))\n'
        "    return table\n\n\n"
        'importer = Importer(title="a step and its loss in each line", read=read)\n',
    )
    (house.folder / "log.txt").write_text("1;3.5\n2;3.25\n3;3.125\n")
    house.run("import", "log.txt", "--format", "semicolons", "--study", "theirs")
    assert house.rows("SELECT final_loss FROM runs WHERE study = 'theirs'") == [{"final_loss": 3.125}]


def test_a_cluster_is_one_file(house):
    house.add(
        "cluster_profiles/corner.yaml",
        "description: A machine in the corner\nexecutor: local\nscale: laptop\nmemory: 3GiB\ncpus: 1\n"
        "time_limit: 0:30:00\n",
    )
    house.run("launch", "tiny.yaml", "--profile", "corner", "--yes")
    assert house.rows("SELECT profile, outcome FROM runs") == [{"profile": "corner", "outcome": "completed"}]


TASK = {
    "model/record/tasks/pause.py": '''\
"""Pauses: a run that measures how long a sleep takes."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from model.record.sections import Positive, TaskSection


class PauseConfig(TaskSection):
    """How often to pause, and for how long."""

    key: ClassVar[str] = "pause"
    purpose: ClassVar[str] = "Pauses, for task pause."
    length_key: ClassVar[str] = "pause.milliseconds"
    steps: Positive = Field(3, description="Pauses.")
    milliseconds: Positive = Field(5, description="Length of a pause.")
    dtype: Literal["float32"] = Field("float32", description="Precision, of which it needs none.")
    batch_size: ClassVar[int] = 1
    sequence_length: ClassVar[int] = 1


section = PauseConfig
''',
    "runner/job/tasks/pause.py": '''\
"""Pauses, and records how long each took."""

from __future__ import annotations

import time

from model.record.files import append
from model.record.records import StepRecord, now
from runner.job.tasks import RepeatRow, TaskContext, TaskSpec


def run(context: TaskContext) -> None:
    for step in range(1, context.run.config.section.steps + 1):
        start = time.perf_counter()
        time.sleep(context.run.config.section.milliseconds / 1000)
        seconds = time.perf_counter() - start
        record = StepRecord(step=step, steps=1, time=now(), step_seconds=seconds, tokens=1, memory_bytes=0)
        append(context.attempt / "steps.jsonl", record)
        context.progress.steps = step


def compared(original, repeat):
    return [RepeatRow.of("outcome", original.outcome, repeat.outcome)], "both paused"


task = TaskSpec(imports=(), run=run, compared=compared, admits=True)
''',
    "analysis/report/tasks/pause.py": '''\
"""Pauses: how long they were meant to be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis.report.rows import Run
from analysis.report.tasks import ReportTask, RunColumn, WriteupParts
from analysis.report.topics import Setting, SetupTopic, lines, setting, whole

_TOPICS = (SetupTopic("Milliseconds of a pause", whole(setting("pause", "milliseconds")), ("pause.milliseconds",)),)


def _settings(runs: Sequence[Run]) -> Iterator[Setting]:
    yield from lines("Pauses", _TOPICS, runs)


TASK = ReportTask(
    name="pause",
    settings=_settings,
    writeup=WriteupParts(methods=lambda runs, _cite: (f"{len(runs)} naps were taken.",)),
    run_columns=(RunColumn("Nap, s", lambda run: f"{run['step_seconds']:.3f}" if run["step_seconds"] else ""),),
    run_note="A nap is the median pause.",
    used="is used",
    not_used="is not used",
    steps="Naps",
    has_mfu=False,
    ranks=False,
)
''',
}
PAUSES = """\
title: Does a longer pause take longer?
base: {task: pause, device: cpu}
matrix: {pause.milliseconds: [4, 40]}
"""


@pytest.mark.trains
def test_a_task_is_one_file_on_each_floor_and_has_its_report(house):
    for path, text in TASK.items():
        house.add(path, text)
    house.add("pauses.yaml", PAUSES)
    house.run("validate", "pauses.yaml")
    house.run("launch", "pauses.yaml", "--yes")
    rows = house.rows("SELECT task, outcome, steps, step_seconds FROM runs ORDER BY step_seconds")
    assert [(row["task"], row["outcome"], row["steps"]) for row in rows] == [("pause", "completed", 3)] * 2
    assert 0.004 <= rows[0]["step_seconds"] < rows[1]["step_seconds"] >= 0.04
    house.run("report", "pauses", "--out", "pages", "--latex")
    methods, references, groups = (
        (house.folder / "pages" / "latex" / name).read_text(encoding="utf-8")
        for name in ("methods.tex", "references.bib", "tables/groups.tex")
    )
    assert "2 naps were taken." in methods
    assert "touvron2023llama" not in references and "Final loss" not in groups
    index = (house.folder / "pages" / "index.html").read_text(encoding="utf-8")
    assert "Milliseconds of a pause" in index
    assert "Nap, s" in index and "A nap is the median pause." in index
    house.run("audit", "pages")


GRID = """\
title: What flash saves
base:
  device: cpu
  model: {dim: 64, layers: 2, heads: 8, kv_heads: 8, ffn_dim: 128, vocab_size: 300}
  data: {path: ../text.parquet, mode: pack}
  train: {steps: 4, batch_size: 1, learning_rate: 1e-3, warmup_steps: 0, log_every: 1, dtype: float32}
baseline: {attention: math}
matrix:
  attention: [math, flash]
  train.sequence_length: [64, 256, 2048]
exclude: [{attention: flash, train.sequence_length: 2048}]
rules:
  - where: {attention: [math, flash]}
    resources: {memory: 600MiB}
    expect: [completed, oom_host]
reported:
  - where: {attention: flash, train.sequence_length: 256}
    memory_saved_percentage: 68.92
    hardware: L4 (32GB)
    source: a report
    read_from: text
    note: an L4 has 24 GB
"""
FRONTIER = """\
title: The largest batch
base:
  task: frontier
  device: cpu
  model: {dim: 64, layers: 2, heads: 4, kv_heads: 4, ffn_dim: 128, vocab_size: 300}
  frontier: {find: batch_size, batch_size: 4096, multiple: 4, sequence_length: 128, dtype: float32, memory_fraction: 0.2, steps: 2}
matrix: {attention: [flash]}
"""


@pytest.mark.trains
def test_a_study_of_what_is_saved_and_what_fits_is_yaml_alone(house):
    """One that others reported of, some of whose cells may run out of memory, and a frontier, in a folder."""
    (house.folder / "both").mkdir()
    house.add("both/grid.yaml", GRID)
    house.add("both/frontier.yaml", FRONTIER)
    house.run("launch", "both", "--yes")
    query = "SELECT outcome, count(*) AS runs FROM runs WHERE outcome = expected_outcome GROUP BY outcome ORDER BY 1"
    assert house.rows(query) == [{"outcome": "completed", "runs": 5}, {"outcome": "oom_host", "runs": 1}]
    house.run("report", "both", "--out", "pages")
    front, grid, savings, largest = (
        (house.folder / "pages" / name).read_text(encoding="utf-8")
        for name in ("index.html", "grid/index.html", "grid/savings.html", "frontier/frontier.html")
    )
    assert "What flash saves" in front and "The largest batch" in front
    assert "68.92" in grid and "Note of the study: an L4 has 24 GB" in grid
    assert savings.count("Hollow diamonds: reported by others, in no comparison.") == 1
    # Of times none is said where a busy machine's data came late.
    assert "Memory saved against the baseline: " in savings
    assert "Largest that fits" in largest
    house.run("audit", "pages")


def test_an_outcome_is_one_entry(house):
    """What it means, whether it is retried and how charts name it follow from that."""
    file = house.folder / "model" / "record" / "outcome.py"
    text = file.read_text()
    entry = '    MELTED = "melted", "the machine grew too hot", "machine"\n'
    file.write_text(text.replace("    DIVERGED = ", f"{entry}    DIVERGED = "))
    code = "from model.record.outcome import Outcome; o = Outcome('melted'); print(o.meaning, o.of_machine, o.short)"
    assert house.python(code) == "the machine grew too hot True melted\n"
    retries = json.loads(house.run("schema", "profile"))["properties"]["retries"]["description"]
    assert "melted" in retries
    house.add("hot.yaml", STUDY + "rules: [{where: {seed: 0}, expect: melted}]\n")
    assert json.loads(house.run("expand", "hot.yaml", "--json"))[0]["expected_outcome"] == "melted"


def test_a_column_of_runs_is_one_line(house):
    """Of a table, or of the view: it is in `runs`, with its comment, and in the dictionary."""
    for script, above, line in (
        (
            "schema.sql",
            "CREATE TABLE run_records (",
            "mood VARCHAR DEFAULT 'calm',  --: How it's planned to feel.",
        ),
        ("schema.sql", "CREATE TABLE attempts (", "noise BIGINT DEFAULT 40,  --: Noise in dB."),
        ("schema.sql", "CREATE TABLE run_measures (", "ticks BIGINT DEFAULT 7,  --: Ticks of a clock."),
        (
            "views.sql",
            "    r.design,",
            "2 * r.planned_steps AS twice,  --: Twice the steps.",
        ),
    ):
        file = house.folder / "analysis" / "store" / script
        before, start, after = file.read_text().partition(above)
        rest, _, after = after.partition("\n")
        file.write_text(f"{before}{start}{rest}\n    {line}\n{after}")
    house.run("launch", "tiny.yaml", "--yes")
    rows = house.rows("SELECT mood, noise, ticks, twice = 2 * planned_steps AS doubled FROM runs")
    assert rows == [{"mood": "calm", "noise": 40, "ticks": 7, "doubled": True}]
    _, page = house.run("schema", "database").split("### runs\n")
    page, _ = page.split("###", 1)
    for line in (
        "| `mood` | varchar | How it's planned to feel. |",
        "| `noise` | bigint | Noise in dB. |",
        "| `ticks` | bigint | Ticks of a clock. |",
        "| `twice` | bigint | Twice the steps. |",
    ):
        assert line in page
