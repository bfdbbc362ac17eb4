"""A launch warns of runs whose backend lacks a kind of call, at the backend's place in the study."""

import pytest

from model import attention
from runner.inputs.document import InvalidFile
from runner.inputs.expansion import expand
from runner.inputs.profile import Profile
from runner.inputs.study import read_study
from runner.plan.fit import refuse_versions, unsupported_calls

SPLIT = "scales: {full: {set: {parallel.context: 2}}}\n"
READS = "title: t\nbase:\n  task: inference\n  device: cpu\n  data: {path: a.parquet}\n"
EXPECTED = "rules: [{where: {attention: [cudnn]}, expect: unsupported, because: no parts}]\n"


def found(study, extra, sets=(), **base):
    return [
        str(each) for each in unsupported_calls(expand(read_study(study(extra, **base)), "full", sets=sets))
    ]


def test_a_backend_without_parts_of_sequences_is_named_at_its_line(study):
    (line,) = found(study, "matrix: {attention: [flash, cudnn]}\n" + SPLIT)
    place, _, text = line.partition(": ")
    assert place.endswith("tiny.yaml:7:29")
    assert text == f"warning: 'cudnn' {attention.NOT_OFFSET}; or state `expect: unsupported`"


def test_a_backend_that_cannot_decode_is_named_unless_it_reads_prompts_alone(study):
    matrix = "matrix: {attention: [flex, math]}\n"
    (line,) = found(study, matrix, base=READS)
    assert f"'flex' {attention.NOT_CACHED}" in line
    assert found(study, matrix, sets=["inference.new_tokens=0"], base=READS) == []


def test_what_the_study_expects_is_no_surprise(study):
    assert found(study, "matrix: {attention: [flash, cudnn]}\n" + SPLIT + EXPECTED) == []


def test_no_backend_is_loaded_where_no_run_asks_for_such_calls(study, monkeypatch):
    def load(name):
        pytest.fail(f"{name} was loaded")

    monkeypatch.setattr(attention, "load", load)
    assert found(study, "matrix: {attention: [flash, cudnn]}\n") == []


ON_A_GPU = "title: t\nbase:\n  data: {path: a.parquet}\n"
ONE_PASS = "matrix: {train.optimizer: [adamw, adamw_one_pass]}\n"
NO_TRITON = "rules: [{where: {train.optimizer: adamw_one_pass}, expect: unsupported, because: no triton}]\n"


def refused(study, monkeypatch, extra, **profile):
    monkeypatch.setattr("model.record.versions.version", {"torch": "2.9.1", "triton": "3.5.1"}.get)
    cells = expand(read_study(study(extra, base=ON_A_GPU)), "full")
    refuse_versions(cells, Profile.model_validate({"executor": "local", **profile}))


def test_a_setting_that_this_triton_is_too_old_for_is_an_error_at_its_line(study, monkeypatch):
    with pytest.raises(InvalidFile, match=r"tiny.yaml:4:35: train.optimizer=adamw_one_pass needs triton 3.6"):
        refused(study, monkeypatch, ONE_PASS)


def test_versions_are_no_error_where_the_runs_use_another_python_or_are_to_be_refused(study, monkeypatch):
    refused(study, monkeypatch, ONE_PASS + NO_TRITON)
    refused(study, monkeypatch, ONE_PASS, python="/opt/python")
    refused(study, monkeypatch, ONE_PASS, executor="slurm", slurm={})
