"""Cells that differ in seed and repeat alone are resolved once, and come out as if each were resolved alone."""

import hashlib
import json
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from model.record.config import RunConfig
from model.record.errors import UserError
from model.record.files import dumps
from runner.inputs import expansion
from runner.inputs.checks import doubts
from runner.inputs.expansion import expand
from runner.inputs.study import read_study
from tests.conftest import TINY

IDS = """\
matrix: {attention: [auto, tiled], seed: [0, 7, 4294967295]}
repeats: 2
rules:
  - {where: {seed: 7}, set: {train.steps: 3}}
  - {where: {attention: auto, seed: [0, 4294967295]}, label: some, expect: failed, because: it is a test}
"""


def test_ids_are_those_that_studies_have_always_had(study):
    cells = expand(read_study(study(IDS)))
    assert [(cell.run_id, cell.group) for cell in cells] == [
        ("06577c5e8275", "b57cb59245a6"),
        ("552b599d8ef5", "2e683072b304"),
        ("57b63379c976", "b57cb59245a6"),
        ("cbde6d1dbca3", "ebf498607547"),
        ("51a8472cd7e7", "3b14029a3078"),
        ("aaefa4c42b12", "ebf498607547"),
        ("70e0cdf50a7c", "b57cb59245a6"),
        ("b716ecd4e9ed", "2e683072b304"),
        ("0b5332634535", "b57cb59245a6"),
        ("1f57b2119438", "ebf498607547"),
        ("e8312f852730", "3b14029a3078"),
        ("6be9d348f665", "ebf498607547"),
    ]


def test_a_configuration_is_validated_once_for_all_its_seeds_and_repeats(study, monkeypatch):
    validated, validate = [], RunConfig.model_validate
    monkeypatch.setattr(
        RunConfig, "model_validate", lambda *values: validated.append(values) or validate(*values)
    )
    text = f"matrix: {{attention: [auto, tiled], seed: {[*range(50)]}}}\nrepeats: 3\n"
    rule = "rules: [{where: {seed: [0, 1]}, set: {train.steps: 2}}]\n"
    assert len(expand(read_study(study(text + rule)))) == 300
    assert len(validated) == 4


def test_a_seed_that_is_copied_makes_the_configuration_that_is_validated():
    config = RunConfig.model_validate({"seed": 1, "task": "attention"})
    other = config.model_copy(update={"seed": 2})
    assert other == RunConfig.model_validate({"seed": 2, "task": "attention"})
    assert (config.seed, other.model_fields_set) == (1, {"seed", "task"})
    assert hash(other) == hash(RunConfig.model_validate({"seed": 2, "task": "attention"}))


SEEDS = st.lists(st.sampled_from([0, 1, 2, 3, 2**32 - 1]), min_size=1, max_size=4, unique=True)
WRONG = st.sampled_from([[-1], [2**32], [True], [1.0], ["1"], [0, 0], [0, False]])
AXES = {
    "seed": st.one_of(SEEDS, SEEDS, SEEDS, SEEDS, WRONG),
    "attention": st.lists(st.sampled_from(["auto", "tiled", "math", "flsh"][:3] * 9 + ["flsh"]), min_size=1),
    "train.steps": st.lists(st.sampled_from([1, 2, 6, 7, 8] * 6 + [0]), min_size=1),
    "train.learning_rate": st.lists(st.sampled_from([1, 1e-3, 1.0]), min_size=1),
    "model.heads": st.lists(st.sampled_from([1, 2, 4] * 5 + [3]), min_size=1),
}
SETS = {
    "train.batch_size": st.sampled_from([1, 2]),
    "train.compile": st.booleans(),
    "train.dtype": st.sampled_from(["float32", "bfloat16", "float16"]),
    "train.warmup_steps": st.sampled_from([0, 3]),
    "train.float8": st.sampled_from(["none"] * 5 + ["tensorwise"]),
}


@st.composite
def studies(draw):
    """A study as YAML has it, with the scale and options to expand it with."""
    axes = {"seed", *draw(st.sets(st.sampled_from([*AXES]), max_size=3))} - draw(
        st.sampled_from([set(), set(), set(), {"seed"}])
    )
    zipped = draw(st.sets(st.sampled_from(sorted(axes)), max_size=2)) if axes else set()
    values = {axis: draw(AXES[axis].map(lambda settings: settings[:4])) for axis in sorted(axes)}
    study = {"matrix": {axis: values[axis] for axis in draw(st.permutations(sorted(axes - zipped)))}}
    if zipped:
        shortest = min(len(values[axis]) for axis in zipped)
        study["zip"] = [{axis: values[axis][:shortest] for axis in sorted(zipped)}]

    def where():
        names = draw(st.sets(st.sampled_from(sorted(axes)), min_size=1, max_size=2))
        return {
            axis: draw(st.one_of(st.sampled_from(values[axis]), st.just(values[axis][:2])))
            for axis in sorted(names)
        }

    def rules(most):
        return [
            {"where": where()}
            | draw(
                st.sampled_from(
                    [{"label": "alpha"}, {"label": "beta"}, {"expect": "failed", "because": "it must"},
                     {"resources": {"memory": "1GiB"}}, {"resources": {"cpus": 2}}]
                )
            )
            | {"set": draw(assignments())}
            for _ in range(draw(st.integers(0, most)))
        ]  # fmt: skip

    def assignments():
        return st.fixed_dictionaries({}, optional=SETS)

    if axes:
        study["rules"] = rules(3)
        study["exclude"] = [where() for _ in range(draw(st.sampled_from([0, 0, 0, 1])))]
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        entry = {axis: draw(st.sampled_from(values[axis])) for axis in sorted(axes)}
        entry |= draw(st.sampled_from([{}, {"seed": 9}, {"attention": "tiled"}]))
        study.setdefault("include", []).append(entry)
    study["repeats"] = draw(st.integers(1, 3))
    study["order"] = draw(st.sampled_from(["interleaved", "random", "as written"]))
    study["scales"] = {"small": {"set": draw(assignments()), "rules": rules(1) if axes else []}}
    only = [f"{axis}={values[axis][0]}" for axis in sorted(axes) if draw(st.integers(0, 4)) == 0]
    only += ["repeat=2"] if study["repeats"] > 1 and draw(st.booleans()) else []
    options = {"sets": draw(st.sampled_from([[], [], ["train.steps=5"], ["seed=3"], ["train.log_every=2"]]))}
    return study, draw(st.sampled_from(["full", "small"])), {**options, "only": only}


def expanded(path, scale, options):
    """Everything about each cell, or the error."""
    try:
        cells = expand(read_study(path), scale, **options)
    except UserError as error:
        return str(error)
    return [*map(repr, doubts(cells))] + [repr((*vars(cell).items(), cell.as_json())) for cell in cells]


@given(studies())
def test_cells_and_errors_are_as_if_each_cell_were_resolved_alone(tmp_path_factory, drawn):
    study, scale, options = drawn
    path = tmp_path_factory.mktemp("study") / "tiny.yaml"
    path.write_text(TINY + "".join(f"{key}: {json.dumps(value)}\n" for key, value in study.items() if value))
    together = expanded(path, scale, options)
    with mock.patch.object(expansion.Resolver, "resolve", expansion.Resolver.resolve_alone):
        assert together == expanded(path, scale, options)
    if isinstance(together, str):
        return
    for cell in expand(read_study(path), scale, **options):
        anew = RunConfig.model_validate(cell.config.model_dump())
        assert (cell.config, cell.as_json()["config"]) == (anew, anew.model_dump())
        repetition = {"repeat": cell.repeat} if cell.repeat > 1 else {}
        hashed = anew.model_dump() if repetition else anew.identity()
        text = dumps({"study": "tiny", "config": hashed, **repetition})
        assert cell.run_id == hashlib.sha256(text.encode()).hexdigest()[:12]
