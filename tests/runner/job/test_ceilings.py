"""A node is measured once for a study, and a run that cannot have its ceilings trains without them."""

import json
import sys
from threading import Barrier, Thread

import pytest

from model.measure.floor import floor
from model.record.files import read, write
from model.record.speed import NodeRecord
from runner.job import ceilings
from runner.job.ceilings import key_of, known_ceilings
from runner.job.manifest import first_manifest
from tests.conftest import until
from tests.model.conftest import run_config
from tests.model.measure.test_floor import ceilings as measured

CONFIG = run_config()


@pytest.fixture
def manifest():
    facts = {"host": "node1", "device_name": "CPU: some", "software": {"torch": "2"}}
    return first_manifest("r1", 1).model_copy(update=facts)


@pytest.fixture
def counted(monkeypatch):
    """Counts measurements, each of which ends as told."""

    def measure(config, options):
        measure.made.append((config, options))
        until(lambda: measure.may_end, 0.01)
        return measured(config)

    measure.made, measure.may_end = [], True
    monkeypatch.setattr(ceilings, "measure", measure)
    return measure


def test_an_attempt_finds_what_an_earlier_one_on_its_node_measured(manifest, counted, tmp_path):
    first, second = (known_ceilings(CONFIG, manifest, tmp_path, ["-P"]) for _ in range(2))
    assert first == second and counted.made == [(CONFIG, ["-P"])]
    assert first.floor == floor(CONFIG, measured(CONFIG)) and first.no_ceilings is None
    (path,) = (tmp_path / ".nodes").iterdir()
    record = read(path, NodeRecord)
    assert path.stem == record.key == first.ceilings == key_of(CONFIG, manifest)
    assert (record.node, record.device_name, record.software) == ("node1", "CPU: some", {"torch": "2"})


def test_where_it_would_take_the_runs_memory_nothing_is_measured(manifest, counted, tmp_path):
    """A run that fits its limit must not end because of the process that measures."""
    assert "of the run's memory" in known_ceilings(CONFIG, manifest, tmp_path, [], 2**28).no_ceilings
    assert not counted.made
    assert known_ceilings(CONFIG, manifest, tmp_path, [], 2**36).ceilings
    assert known_ceilings(CONFIG, manifest, tmp_path, [], 2**28).ceilings, "it was measured before"


@pytest.mark.parametrize(
    "other",
    [{"host": "node2"}, {"gpu_uuid": "GPU-1"}, {"device_name": "CPU: other"}, {"software": {"torch": "3"}}],
    ids=str,
)
def test_another_node_device_or_software_is_measured_on_its_own(manifest, counted, tmp_path, other):
    for record in (manifest, manifest.model_copy(update=other)):
        known_ceilings(CONFIG, record, tmp_path, [])
    assert len(counted.made) == 2 == len(list((tmp_path / ".nodes").iterdir()))


def test_runs_of_another_seed_or_backend_share_a_record_and_of_another_shape_do_not(manifest):
    same, longer = run_config("math", seed=4, steps=9), run_config(sequence_length=64)
    assert key_of(same, manifest) == key_of(CONFIG, manifest) != key_of(longer, manifest)


@pytest.mark.fault
def test_no_floor_is_stated_from_ceilings_that_spread_widely(manifest, monkeypatch, tmp_path, capsys):
    """As on a CPU beside other work, where a run had a floor of 490 % of its step."""
    sure = measured(CONFIG)

    def loose(timing, factor=3.2):
        return timing.model_copy(update={"seconds_25": timing.seconds, "seconds_75": factor * timing.seconds})

    product, *others = sure.products
    product = product.model_copy(update={"timing": loose(product.timing)})
    share = f"1 of {len(sure.products)} matrix products"
    for changes, which in (
        ({"products": [product, *others]}, share),
        ({"traffic": loose(sure.traffic)}, "the memory bandwidth"),
        (
            {"products": [product, *others], "traffic": loose(sure.traffic)},
            f"{share} and the memory bandwidth",
        ),
        ({"traffic": loose(sure.traffic, 1.5)}, None),
        ({"launch": loose(sure.launch)}, None),
    ):
        variant = sure.model_copy(update=changes)
        monkeypatch.setattr(ceilings, "measure", lambda config, options, variant=variant: variant)
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        record = known_ceilings(CONFIG, manifest, folder, [])
        assert record.ceilings == key_of(CONFIG, manifest)
        if which is None:
            assert record.floor and record.no_ceilings is None
            continue
        assert record.floor is None
        assert record.no_ceilings.startswith(
            f"the repeats of {which} spread widely (upper over lower quartile up to 3.2"
        )
        assert record.no_ceilings in capsys.readouterr().err


def test_of_attempts_that_start_together_one_measures(manifest, counted, tmp_path):
    counted.may_end, barrier, records = False, Barrier(3), []

    def attempt():
        barrier.wait()
        records.append(known_ceilings(CONFIG, manifest, tmp_path, []))

    threads = [Thread(target=attempt) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: counted.made, 0.01)
    counted.may_end = True
    for thread in threads:
        thread.join()
    assert len(counted.made) == 1 and len({record.ceilings for record in records}) == 1
    assert [path.suffix for path in (tmp_path / ".nodes").iterdir()] == [".json"]


def test_rates_in_16_bits_are_not_taken_for_those_in_8(manifest, counted, tmp_path):
    record = known_ceilings(run_config(float8="rowwise", dtype="bfloat16"), manifest, tmp_path, [])
    assert "products in 8 bits" in record.no_ceilings and record.floor is None and not counted.made


@pytest.mark.fault
@pytest.mark.parametrize("content", ["", "{", '{"key": 1}'])
def test_a_torn_record_is_measured_again(manifest, counted, tmp_path, content):
    (tmp_path / ".nodes").mkdir()
    (tmp_path / ".nodes" / f"{key_of(CONFIG, manifest)}.json").write_text(content)
    assert known_ceilings(CONFIG, manifest, tmp_path, []).floor
    assert len(counted.made) == 1


@pytest.mark.fault
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise MemoryError('3 GiB')", "ended with code 1: MemoryError: 3 GiB"),
        ("print('{}')", "gave no answer"),
        ("import time; time.sleep(600)", "did not finish within 0.2 s"),
    ],
)
def test_a_run_trains_without_ceilings_that_cannot_be_measured(
    manifest, monkeypatch, tmp_path, capsys, code, reason
):
    program = tmp_path / "python"
    program.write_text(f"#!{sys.executable}\n{code}\n")
    program.chmod(0o755)
    monkeypatch.setattr(ceilings, "LIMIT_SECONDS", 0.2 if "sleep" in code else 60.0)
    monkeypatch.setattr(sys, "executable", str(program))
    record = known_ceilings(CONFIG, manifest, tmp_path, [])
    assert reason in record.no_ceilings and reason in capsys.readouterr().err
    assert record.floor is None and record.ceilings is None


@pytest.mark.fault
def test_a_run_trains_where_no_record_can_be_kept(manifest, counted, tmp_path):
    (tmp_path / ".nodes").write_text("in the way")
    assert "Not a directory" in known_ceilings(CONFIG, manifest, tmp_path, []).no_ceilings


def steady(measured):
    """The same medians, as of repeats that do not spread."""

    def tightened(timing):
        return timing.model_copy(update={"seconds_25": timing.seconds, "seconds_75": timing.seconds})

    products = [
        product.model_copy(update={"timing": tightened(product.timing)}) for product in measured.products
    ]
    return measured.model_copy(update={"products": products, "traffic": tightened(measured.traffic)})


@pytest.mark.trains
def test_a_run_says_the_least_time_of_its_step_on_this_machine(runner, study, root):
    """Also of one that was busy when it was measured: the first run says that of itself."""
    path_of_study = study("matrix: {seed: [0, 1, 2]}\n")
    runner("launch", path_of_study, "--only", "seed=0", rc=0)
    (path,), (first,) = root.glob("tiny/.nodes/*.json"), root.glob("tiny/*/attempt-1/manifest.json")
    record = read(path, NodeRecord)
    assert record.measured.clocks is None
    assert (json.loads(first.read_text())["floor"] is None) is bool(record.measured.unsure)
    write(path, record.model_copy(update={"measured": steady(record.measured)}))
    runner("launch", path_of_study, rc=0)
    others = [other for other in root.glob("tiny/*/attempt-1/manifest.json") if other != first]
    manifests = [json.loads(other.read_text()) for other in others]
    assert [other["ceilings"] for other in manifests] == [path.stem] * 2
    runner("collect", rc=0)
    query = "SELECT ceiling_percentage, floor_seconds, floor_percentage, mfu FROM runs WHERE seed > 0"
    rows = json.loads(runner("sql", query, "--format", "json", rc=0).stdout)
    least = sum(part["seconds"] for part in manifests[0]["floor"])
    assert [row["floor_seconds"] for row in rows] == [pytest.approx(least)] * 2
    assert len(rows) == 2 and all(row["ceiling_percentage"] > 0 and row["mfu"] is None for row in rows)


GPU = """\
title: On a GPU
base:
  device: cuda
  model: {dim: 1024, layers: 4, heads: 8, kv_heads: 2, ffn_dim: 4096, vocab_size: 32768}
  data: {path: text.parquet}
  train: {steps: 30, sequence_length: 1024, batch_size: 4, warmup_steps: 0, log_every: 5, dtype: bfloat16}
"""


@pytest.mark.gpu
@pytest.mark.trains
def test_no_run_on_a_gpu_is_faster_than_its_floor(runner, study, root):
    matrix = "matrix: {attention: [auto, custom], train.compile: [false, true]}\n"
    runner("launch", study(matrix, base=GPU), "--profile", "workstation", rc=0)
    runner("collect", rc=0)
    nodes = json.loads(runner("sql", "FROM nodes", "--format", "json", rc=0).stdout)
    assert len(nodes) == 1 and nodes[0]["graphics_clock_mhz"] > 0
    query = "SELECT label, step_seconds, floor_seconds, floor_percentage, ceiling_percentage FROM runs"
    for run in json.loads(runner("sql", query, "--format", "json", rc=0).stdout):
        assert 0 < run["floor_percentage"] < 100 and 0 < run["ceiling_percentage"] < 100, run
    query = "SELECT run_id, sum(share) AS whole, min(seconds) AS least FROM step_profile GROUP BY run_id"
    rows = json.loads(runner("sql", query, "--format", "json", rc=0).stdout)
    assert len(rows) == 4 and all(row["whole"] == pytest.approx(1) and row["least"] >= 0 for row in rows)


INFERENCE = """\
title: Inference on a GPU
base:
  task: inference
  device: cuda
  model: {dim: 2048, layers: 8, heads: 16, kv_heads: 4, ffn_dim: 8192, vocab_size: 32768}
  data: {path: text.parquet}
  inference: {steps: 12, warmup_steps: 4, prompt_length: 2048, new_tokens: 32}
"""


@pytest.mark.gpu
@pytest.mark.trains
def test_no_prefill_and_no_decoded_token_on_a_gpu_is_faster_than_its_floor(runner, study, root):
    """Its weights, of a gigabyte, fit into no cache."""
    matrix = "matrix: {attention: [auto, cudnn], inference.compile: [false, true]}\n"
    runner("launch", study(matrix, base=INFERENCE), "--profile", "workstation", rc=0)
    runner("collect", rc=0)
    query = "SELECT floor_percentage, decode_floor_percentage, ceiling_percentage FROM runs"
    runs = json.loads(runner("sql", query, "--format", "json", rc=0).stdout)
    assert len(runs) == 4 and all(0 < share < 100 for run in runs for share in run.values()), runs
    query = "SELECT phase, run_id, sum(share) AS whole, min(seconds) AS least FROM step_profile GROUP BY ALL"
    rows = json.loads(runner("sql", query, "--format", "json", rc=0).stdout)
    assert len(rows) == 8 and all(row["whole"] == pytest.approx(1) and row["least"] >= 0 for row in rows)
