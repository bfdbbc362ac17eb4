"""A study expands into the runs that its text says, and into nothing else."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.record.errors import UserError
from model.record.files import dumps
from model.record.outcome import Outcome
from runner.inputs import checks
from runner.inputs.document import InvalidFile, parse
from runner.inputs.expansion import expand
from runner.inputs.profile import Resources
from runner.inputs.settings import settings_for
from runner.inputs.study import read_study
from tests.conftest import TINY


def factors(cells):
    return [tuple(cell.factors.values()) for cell in cells]


def test_a_matrix_is_every_combination_in_the_order_of_the_file(study):
    path = study("matrix:\n  attention: [auto, tiled]\n  seed: [0, 1]\n")
    assert factors(expand(read_study(path))) == [("auto", 0), ("auto", 1), ("tiled", 0), ("tiled", 1)]


def test_a_study_without_axes_is_one_run(study):
    assert len(expand(read_study(study("")))) == 1


def test_zip_varies_axes_together(study):
    path = study("matrix: {seed: [0, 1]}\nzip:\n  - {model.dim: [32, 64], model.heads: [2, 4]}\n")
    assert factors(expand(read_study(path))) == [(0, 32, 2), (0, 64, 4), (1, 32, 2), (1, 64, 4)]


def test_a_scale_can_replace_a_zipped_group(study):
    path = study(
        "zip:\n  - {model.dim: [32, 64], model.heads: [2, 4]}\n  - {seed: [1, 2]}\n"
        "scales: {full: {zip: [{model.heads: [4], model.dim: [128]}]}, small: {}}\n"
    )
    assert [cell.factors for cell in expand(read_study(path))] == [
        {"model.heads": 4, "model.dim": 128, "seed": seed} for seed in (1, 2)
    ]
    assert len(expand(read_study(path), "small")) == 4
    assert ":10:" in expand(read_study(path))[0].why[0]


def test_include_adds_and_exclude_removes_cells(study):
    path = study(
        "matrix: {attention: [auto, tiled], seed: [0, 1]}\n"
        "include: [{attention: math, seed: 7}]\n"
        "exclude: [{attention: tiled, seed: [1]}]\n"
    )
    assert factors(expand(read_study(path))) == [("auto", 0), ("auto", 1), ("tiled", 0), ("math", 7)]


def test_an_included_cell_takes_what_it_does_not_say_from_the_base(study):
    path = study("matrix: {train.steps: [3, 4]}\ninclude: [{seed: 9}]\n")
    assert factors(expand(read_study(path))) == [(3, 0), (4, 0), (6, 9)]


def test_a_scale_adds_cells_to_those_of_its_matrix_and_other_scales_have_none_of_them(study):
    path = study(
        "matrix: {train.steps: [3, 4]}\ninclude: [{train.steps: 5}]\n"
        "scales: {small: {matrix: {train.steps: [1]}, include: [{train.steps: 2}]}}\n"
    )
    assert factors(expand(read_study(path), "small")) == [(1,), (5,), (2,)]
    assert factors(expand(read_study(path))) == [(3,), (4,), (5,)]


@pytest.mark.refused
def test_a_cell_that_a_scale_adds_is_refused_in_its_place(study):
    path = study("matrix: {seed: [0]}\nscales: {small: {include: [{train.stepz: 2}]}}\n")
    with pytest.raises(InvalidFile, match=r":8:29: unknown setting 'train.stepz'"):
        expand(read_study(path))


def test_rules_set_and_expect_for_matching_cells_only(study):
    path = study(
        "matrix: {attention: [auto, math]}\n"
        "rules:\n  - {where: {attention: math}, set: {train.steps: 2}, expect: oom_gpu, because: it is large}\n"
    )
    auto, math = expand(read_study(path))
    assert (auto.config.train.steps, auto.expected, auto.because) == (6, (Outcome.COMPLETED,), None)
    assert (math.config.train.steps, math.expected, math.because) == (2, (Outcome.OOM_GPU,), "it is large")
    assert any(":9:" in reason for reason in math.why), "the rule's line is part of why the cell is as it is"


def test_a_rule_may_expect_any_of_several_outcomes_the_likeliest_first(study):
    path = study("matrix: {seed: [0]}\nrules: [{where: {seed: 0}, expect: [oom_gpu, completed, oom_gpu]}]\n")
    (cell,) = expand(read_study(path))
    assert cell.expected == (Outcome.OOM_GPU, Outcome.COMPLETED)
    assert (cell.as_json()["expected_outcome"], cell.as_json()["also_expected"]) == ("oom_gpu", ["completed"])


def test_rules_give_cells_other_resources_the_later_one_wins_and_the_run_stays_the_same(study):
    path = study(
        "matrix: {seed: [0, 1]}\n"
        "rules:\n"
        "  - {where: {seed: 1}, resources: {time_limit: 2:00:00, memory: 1GiB}}\n"
        "  - {where: {seed: 1}, resources: {memory: 8GiB, cpus: 3}}\n"
    )
    usual, other = expand(read_study(path))
    assert usual.resources == Resources()
    assert other.resources == Resources(time_limit="2:00:00", memory="8GiB", cpus=3)
    assert other.as_json()["resources"] == {"time_limit": "2:00:00", "memory": "8GiB", "cpus": 3}
    without = expand(read_study(study("matrix: {seed: [0, 1]}\n")))
    assert [cell.run_id for cell in without] == [usual.run_id, other.run_id]


def test_layers_apply_in_the_stated_order(study):
    path = study(
        "matrix: {train.learning_rate: [0.5]}\n"
        "rules: [{where: {train.learning_rate: 0.5}, set: {train.warmup_steps: 3}}]\n"
        "scales:\n  small:\n    set: {train: {steps: 2, warmup_steps: 1}}\n"
        "    rules: [{where: {train.learning_rate: 0.5}, set: {train.warmup_steps: 4}}]\n"
    )
    (cell,) = expand(read_study(path), "small")
    assert (cell.config.train.steps, cell.config.train.warmup_steps) == (2, 4)
    (cell,) = expand(read_study(path), "small", sets=["train.warmup_steps=5"])
    assert cell.config.train.warmup_steps == 5


def test_a_scale_can_replace_an_axis(study):
    path = study("matrix: {seed: [0, 1, 2]}\nscales: {small: {matrix: {seed: [5]}}}\n")
    assert factors(expand(read_study(path), "small")) == [(5,)]


def test_only_picks_cells_by_factor(study):
    read = read_study(study("matrix: {attention: [auto, math, tiled], train.learning_rate: [1e-4, 3e-3]}\n"))
    for rate in ("train.learning_rate", "learning_rate", "learn", "lr", "rate"):
        assert len(expand(read, only=["attention=auto,tiled", f"{rate}=1e-4"])) == 2


@pytest.mark.refused
def test_a_short_name_of_two_factors_is_refused(study):
    read = read_study(study("matrix: {seed: [0, 1], train.sequence_length: [16, 32]}\n"))
    message = "--only se=1: 'se' could mean seed or train.sequence_length"
    with pytest.raises(UserError, match=f"^{message}$"):
        expand(read, only=["se=1"])


def test_a_factor_of_an_imported_study_may_have_an_empty_word():
    assert settings_for("lr", ["batch__size", "train.learning_rate"]) == ["train.learning_rate"]


def test_ids_depend_on_the_configuration_and_not_on_the_place(study, tmp_path):
    cells = expand(read_study(study("matrix: {seed: [0, 1]}\n")))
    elsewhere = tmp_path / "elsewhere" / "tiny.yaml"
    elsewhere.parent.mkdir()
    elsewhere.write_text(TINY + "\n\n# moved\nmatrix: {seed: [0, 1]}\n")
    assert [cell.run_id for cell in expand(read_study(elsewhere))] == [cell.run_id for cell in cells]
    assert cells[0].group == cells[1].group, "runs that differ by seed alone are one group"
    assert cells[0].run_id != expand(read_study(study("", name="other")))[0].run_id


@pytest.mark.refused
@pytest.mark.parametrize(
    ("extra", "line", "message"),
    [
        ("matrx: {seed: [0]}\n", 7, "unknown key 'matrx' (did you mean 'matrix'?"),
        ("matrix: {sede: [0]}\n", 7, "unknown setting 'sede' (did you mean 'seed'?"),
        ("matrix: {seed: []}\n", 7, "at least 1"),
        ("matrix: {attention: [auto, flash9]}\n", 7, "unknown attention backend 'flash9'"),
        ("matrix: {seed: [0, -1]}\n", 7, "greater than or equal to 0"),
        ("matrix: {seed: [one]}\n", 7, "must be a whole number, got 'one'"),
        ("matrix: {model.heads: [3]}\n", 7, "not a multiple of heads 3"),
        ("matrix: {seed: [0, 0]}\n", 7, "the same run as an earlier cell"),
        ("matrix: {seed: [0]}\nzip:\n  - {model.dim: [1, 2], model.heads: [1]}\n", 9, "unequal length"),
        ("matrix: {seed: [0]}\nexclude: [{seed: 3}]\n", 8, "matches no cell"),
        ("matrix: {seed: [0]}\nrules: [{where: {seed: 3}, expect: failed}]\n", 8, "matches no cell"),
        ("matrix: {seed: [0]}\nrules: [{where: {sed: 0}, expect: failed}]\n", 8, "'sed' is not a factor"),
        (
            "matrix: {attention: [math, flash]}\nrules: [{where: {attention: [math, flsh]}, expect: failed}]\n",
            8,
            "unknown attention backend 'flsh' (did you mean 'flash'?",
        ),
        (
            "matrix: {attention: [math, flash]}\nexclude: [{attention: [math, flsh]}]\n",
            8,
            "unknown attention backend 'flsh' (did you mean 'flash'?",
        ),
        (
            "matrix: {seed: [0]}\nrules: [{where: {seed: 0}, set: {seed: 1}}]\n",
            8,
            "so rules cannot change it",
        ),
        ("matrix: {seed: [0]}\nrules: [{where: {seed: 0}, expect: exploded}]\n", 8, "'completed'"),
        ("matrix: {seed: [0]}\nrules: [{where: {seed: 0}, resources: {memory: 8}}]\n", 8, "such as 512MiB"),
        ("matrix: {seed: [0]}\nrules: [{where: {seed: 0}, resources: {memory: 8GB}}]\n", 8, "such as 512MiB"),
        ("matrix: {seed: [0]}\nrules: [{where: {seed: 0}, resources: {gpus: 2}}]\n", 8, "'cpus'"),
        ("scales: {small: {matrix: {seed: [0]}}}\n", 7, "'seed' is not an axis"),
        ("name: ../../etc\n", 7, "a name has at most 100 letters"),
        (f"name: {'n' * 101}\n", 7, "a name has at most 100 letters"),
        ("name: 'a/b'\n", 7, "a name has at most 100 letters"),
    ],
)
def test_a_mistake_is_reported_at_its_line_with_what_would_be_right(study, extra, line, message):
    with pytest.raises(InvalidFile) as error:
        expand(read_study(study(extra)))
    assert f"tiny.yaml:{line}:" in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "extra",
    [
        "matrix: {seed: [0, 1]}\nscales: {small: {matrix: {seed: [5]}}}\nrules: [{where: {seed: [0, 5]}, %s}]\n",
        "matrix: {seed: [0, 1]}\nscales: {small: {matrix: {seed: [5, 6]}}}\nexclude: [{seed: [0, 5]}]\n",
        "zip: [{seed: [0]}]\nscales: {small: {zip: [{seed: [5]}]}}\nrules: [{where: {seed: [0, 5]}, %s}]\n",
        "matrix: {seed: [0]}\nscales: {small: {include: [{seed: 5}]}}\nrules: [{where: {seed: [0, 5]}, %s}]\n",
        "matrix: {seed: [1]}\ninclude: [{train.steps: 2}]\nrules: [{where: {train.steps: [6, 2]}, %s}]\n",
        "matrix: {seed: [1]}\ninclude: [{train.steps: 2}]\nscales: {small: {set: {train.steps: 9}}}\n"
        "rules: [{where: {train.steps: [2, 6, 9]}, %s}]\n",
    ],
)
def test_a_where_may_list_what_cells_have_at_another_scale_or_in_the_base(study, extra):
    assert expand(read_study(study(extra.replace("%s", "expect: failed"))))


def test_a_where_may_list_values_that_only_leaves_out(study):
    path = study("matrix: {seed: [0, 1]}\nrules: [{where: {seed: [0, 1]}, expect: failed}]\n")
    assert factors(expand(read_study(path), only=["seed=1"])) == [(1,)]


@pytest.mark.refused
def test_all_mistakes_are_reported_at_once(study):
    with pytest.raises(InvalidFile) as error:
        expand(read_study(study("matrix: {attention: [flash8, auto, flash9]}\n")))
    assert [problem.mark.column for problem in error.value.problems] == [22, 36]


@pytest.mark.refused
def test_a_million_cells_are_refused_before_they_are_made(study):
    values = ", ".join(map(str, range(1, 1001)))
    path = study(f"matrix:\n  seed: [{values}]\n  train.steps: [{values}]\n")
    with pytest.raises(InvalidFile, match=r"tiny\.yaml:7:1: the matrix has 1,000,000 cells"):
        expand(read_study(path))


@pytest.mark.refused
@pytest.mark.parametrize(
    ("sets", "only", "message"),
    [
        (["train.stesp=1"], [], "did you mean 'train.steps'"),
        (["train.steps"], [], "--set train.steps=VALUE"),
        (["train.steps=many"], [], "--set train.steps=many"),
        (["seed=1"], [], "--only seed=VALUE"),
        ([], ["sed=1"], "did you mean 'seed'"),
        ([], ["seed=8"], "no cell has seed = '8'"),
    ],
)
def test_a_wrong_option_is_reported_with_the_valid_choices(study, sets, only, message):
    with pytest.raises(UserError) as error:
        expand(read_study(study()), sets=sets, only=only)
    assert message in str(error.value)


@pytest.mark.refused
def test_an_unknown_scale_names_the_valid_ones(study):
    with pytest.raises(InvalidFile, match=r"no scale 'big' in this study \(valid: full, small\)"):
        expand(read_study(study("scales: {small: {}}\n")), "big")


@given(
    st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20, unique=True),
    st.lists(st.integers(1, 10**6), min_size=1, max_size=5, unique=True),
)
def test_any_matrix_gives_the_product_with_distinct_ids(tmp_path_factory, seeds, steps):
    path = tmp_path_factory.mktemp("study") / "tiny.yaml"
    path.write_text(TINY + f"matrix:\n  seed: {seeds}\n  train.steps: {steps}\n")
    cells = expand(read_study(path))
    assert factors(cells) == [(seed, step) for seed in seeds for step in steps]
    assert len({cell.run_id for cell in cells}) == len(cells)
    assert len({cell.group for cell in cells}) == len(steps)


def test_options_that_came_later_leave_the_ids_of_earlier_studies_alone(study):
    cell, *_ = expand(read_study(study("")))
    config = cell.config.model_dump()
    for key in ("loss", "optimizer", "float8", "checkpoint_activations", "accumulate"):
        del config["train"][key]
    assert "reduce" not in config["train"], "records leave it out, too"
    text = dumps({"study": "tiny", "config": config})
    assert cell.run_id == hashlib.sha256(text.encode()).hexdigest()[:12]
    (other,) = expand(read_study(study("")), sets=["device=cuda", "train.loss=linear_cross_entropy"])
    (usual,) = expand(read_study(study("")), sets=["device=cuda"])
    assert other.run_id != usual.run_id


@given(st.text())
def test_any_text_is_a_document_or_a_clear_error(text):
    """No text makes the parser raise anything else than an error with a place."""
    try:
        parse(text, "s.yaml")
    except InvalidFile as error:
        assert str(error).startswith("s.yaml:")


def test_a_cell_remembers_what_the_study_says_where_a_scale_or_an_option_says_otherwise(study):
    path = study(
        "matrix: {attention: [auto, tiled]}\n"
        "rules: [{where: {attention: tiled}, set: {train.batch_size: 3}}]\n"
        "scales:\n  small:\n    set: {train.steps: 2, train.compile: true, train.dtype: float32}\n"
        "    rules: [{where: {attention: tiled}, set: {train.batch_size: 5}}]\n"
    )
    read = read_study(path)
    assert [cell.overridden for cell in expand(read)] == [{}, {}]
    auto, tiled = expand(read, "small", sets=["train.learning_rate=0.5", "train.steps=4"])
    overrides = {name: (override.own, override.by) for name, override in auto.overridden.items()}
    assert overrides == {
        "train.steps": (6, "`--set`"),
        "train.compile": (None, "scale small"),
        "train.learning_rate": (1e-2, "`--set`"),
    }, "a value that is the study's own is not listed"
    assert (tiled.overridden["train.batch_size"].own, tiled.config.train.batch_size) == (3, 5)


def test_the_last_matching_rule_that_has_a_label_gives_it(study):
    path = study(
        "matrix: {attention: [auto, tiled, math], seed: [0, 1]}\n"
        "rules:\n"
        "  - {where: {attention: auto}, label: PyTorch's choice}\n"
        "  - {where: {attention: tiled}, label: a loop}\n"
        "  - {where: {attention: tiled}, label: tiles in a loop}\n"
        "  - {where: {attention: tiled}, set: {train.steps: 2}}\n"
    )
    labels = [cell.label for cell in expand(read_study(path))]
    assert labels == ["PyTorch's choice"] * 2 + ["tiles in a loop"] * 2 + [None] * 2


def test_factors_in_braces_stand_for_their_values_in_a_label(study):
    path = study(
        "matrix: {attention: [auto, math], train.sequence_length: [64, 16384], seed: [0, 1]}\n"
        "rules: [{where: {attention: [auto, math]}, label: '{attention}: {train.sequence_length} tokens'}]\n"
    )
    labels = [cell.label for cell in expand(read_study(path)) if cell.config.seed == 1]
    assert labels == ["auto: 64 tokens", "auto: 16,384 tokens", "math: 64 tokens", "math: 16,384 tokens"]


@pytest.mark.parametrize("name", ["train.steps", "seed", "", "0"])
def test_only_factors_stand_in_braces_in_a_label(study, name):
    path = study(
        f"matrix: {{attention: [auto], seed: [0, 1]}}\nrules: [{{where: {{attention: auto}}, label: 'x {{{name}}}'}}]\n"
    )
    with pytest.raises(InvalidFile) as refused:
        expand(read_study(path))
    (problem,) = refused.value.problems
    assert f"'{{{name}}}' in a label stands for a factor's value: choose from attention" in problem.text
    assert "label:" in path.read_text().splitlines()[problem.mark.line - 1]


def test_a_label_that_grows_too_long_is_refused(study):
    long = "a" * 59
    path = study(
        "matrix: {attention: [auto], train.sequence_length: [64]}\n"
        f"rules: [{{where: {{attention: auto}}, label: '{long}{{attention}}'}}]\n"
    )
    with pytest.raises(InvalidFile, match="longer than a label's 60 characters"):
        expand(read_study(path))


def test_a_label_is_not_part_of_a_runs_id(study):
    text = "matrix: {attention: [auto, tiled]}\nrules: [{where: {attention: auto}, %s}]\n"
    plain = expand(read_study(study(text % "expect: completed")))
    assert [c.run_id for c in expand(read_study(study(text % "label: x")))] == [c.run_id for c in plain]


def test_what_cells_can_have_is_listed_once_however_many_rules_a_study_has(study, monkeypatch):
    calls, possible = [], checks.possible_settings
    monkeypatch.setattr(
        checks, "possible_settings", lambda parsed, *scales: calls.append(scales) or possible(parsed, *scales)
    )
    rules = [f"{{where: {{seed: [{seed}]}}, expect: completed}}" for seed in range(3)]
    scaled = "{where: {seed: [0]}, expect: failed, because: it must}"
    text = f"matrix: {{seed: [0, 1, 2]}}\nrules: [{', '.join(rules)}]\n"
    expand(read_study(study(f"{text}scales: {{full: {{rules: [{scaled}, {scaled}]}}, small: {{}}}}\n")))
    assert calls == [("full", "small"), ("full",)]
