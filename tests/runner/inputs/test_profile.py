"""Profiles say how runs start, and cannot smuggle anything into a batch script."""

import pytest

from model.record.errors import UserError
from runner.execute.slurm.script import script as script_of
from runner.inputs.document import InvalidFile
from runner.inputs.profile import parse_memory, parse_time, profile_files, read_cluster
from runner.state.attempts import JobShape


def script(profile, folder, name, count):
    """The batch script of runs that ask for what the profile says."""
    shape = JobShape(profile.memory_bytes, profile.time_limit_seconds, profile.cpus)
    return script_of(profile, folder, name, shape, count)


@pytest.mark.parametrize("name", sorted(profile_files()))
def test_every_shipped_profile_is_valid_and_described(name):
    assert read_cluster(name).profile.description


@pytest.mark.parametrize(
    "name", [name for name in sorted(profile_files()) if read_cluster(name).profile.slurm]
)
def test_every_slurm_profile_renders_a_script_of_its_own_settings(name, tmp_path):
    profile = read_cluster(name).profile
    text = script(profile, tmp_path / ".submitit", "study", 10)
    share = profile.runs_per_job
    packs = -(-10 // share)
    assert f"#SBATCH --array=0-{packs - 1}%{min(packs, profile.max_parallel // share)}" in text
    assert f"#SBATCH --cpus-per-task={profile.cpus}" in text
    assert (f"#SBATCH --ntasks-per-node={share}" in text) == (share > 1)
    assert text.count("--gpus-per-task") == (share > 1), "each run its own GPU, said once"
    assert "wckey" not in text
    assert all(argument in text for argument in profile.slurm.srun_args)


def test_every_setting_reaches_the_script(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        'executor: slurm\ncpus: 3\ngpus: 1\nmemory: 1.5GiB\ntime_limit: 0:01:30\nenv: {A: "b c"}\n'
        "slurm: {partition: p, account: a, qos: q, reservation: r, constraint: 'x&y', exclusive: true,\n"
        "  setup: [module load cuda], options: {hint: nomultithread}, srun_args: [--environment=e]}\n"
    )
    text = script(read_cluster(str(path)).profile, tmp_path, "study", 1)
    for line in (
        "#SBATCH --partition=p", "#SBATCH --account=a", "#SBATCH --qos=q", "#SBATCH --reservation=r",
        "#SBATCH --constraint='x&y'", "#SBATCH --exclusive", "#SBATCH --gpus-per-node=1", "#SBATCH --mem=1536M",
        "#SBATCH --time=2", "#SBATCH --hint=nomultithread", "module load cuda", "export A='b c'",
    ):  # fmt: skip
        assert line in text.splitlines(), line
    assert "--environment=e" in next(line for line in text.splitlines() if line.startswith("srun "))


@pytest.mark.refused
@pytest.mark.parametrize(
    ("yaml", "place", "message"),
    [
        ("executor: slrum\n", "1:1", "'local' or 'slurm'"),
        ("executor: slurm\n", "1:1", "needs a `slurm:` section"),
        ("executor: local\nslurm: {}\n", "1:1", "needs executor: slurm"),
        ("executor: local\nmemory: 3GB\n", "2:1", "512MiB"),
        ("executor: local\nmemory: 0GiB\n", "2:1", "512MiB"),
        ("executor: local\ntime_limit: 90\n", "2:1", "such as 0:30:00"),
        ("executor: local\ntime_limit: 1:90:00\n", "2:1", "0:30:00"),
        ("executor: local\nmax_parallel: 0\n", "2:1", "greater than 0"),
        ("executor: slurm\nslurm:\n  partion: x\n", "3:3", "did you mean 'partition'"),
        ('executor: slurm\nslurm: {partition: "x\\ntouch PWNED #"}\n', "2:9", "U+000A"),
        ("executor: slurm\nslurm: {partition: 'x`id`'}\n", "2:9", "only letters"),
        ("executor: slurm\nslurm: {account: '$(id)'}\n", "2:9", "only letters"),
        ('executor: slurm\nslurm: {setup: ["a\\nb"]}\n', "2:17", "make every line an item of the list"),
        ('executor: local\nenv: {A: "x\\ny"}\n', "2:7", "U+000A"),
        ("executor: local\nrequeue: true\n", "2:1", "needs executor: slurm"),
        ("executor: local\nchain: false\n", "2:1", "needs executor: slurm"),
        (
            "executor: slurm\nslurm: {setup: [module load a, 'echo \"oops']}\n",
            "2:32",
            "no line for bash: unexpected EOF",
        ),
        ("executor: slurm\nslurm: {setup: [if true; fi]}\n", "2:17", "no line for bash: syntax error"),
        (
            "executor: slurm\ncpus: 2\nslurm: {srun_args: [-v, --cpus-per-task=8]}\n",
            "3:25",
            "contradicts `cpus: 2`",
        ),
        ("executor: slurm\nslurm: {options: {time: 60}}\n", "2:19", "set by `time_limit`: keep that one"),
        ("executor: slurm\nslurm: {options: {cpus_per_task: 2}}\n", "2:19", "set by `cpus`: keep that one"),
        (
            "executor: slurm\nslurm: {qos: a, options: {qos: b}}\n",
            "2:27",
            "set by `slurm.qos`: keep that one",
        ),
        (
            "executor: slurm\nmemory: 1GiB\nslurm: {options: {mem-per-cpu: 1G}}\n",
            "3:19",
            "contradicts `memory`, which is passed as --mem",
        ),
        ("executor: slurm\nslurm: {options: {contiguous: false}}\n", "2:19", "must be True"),
        ("executor: local\nmax_queued: 5\n", "2:1", "needs executor: slurm"),
        ("executor: local\ndebug: {partition: debug}\n", "2:1", "needs executor: slurm"),
        ("executor: local\ngpus_per_node: 0\n", "2:1", "greater than 0"),
        ("executor: local\ncheckpoint_every: 30\n", "2:1", "such as 0:30:00"),
        ("executor: local\ncheckpoint_every: 30 min\n", "2:1", "0:30:00"),
        ("executor: local\nretries: -1\n", "2:1", "greater than or equal to 0"),
        (
            "executor: local\ntime_limit: 0:01:00\ngrace: 0:02:00\n",
            "3:1",
            "must be shorter than the time limit",
        ),
        ("executor: slurm\nslurm: {}\ndebug: {partitin: x}\n", "3:9", "did you mean 'partition'"),
        ("executor: slurm\nslurm: {}\ndebug: {time_limit: 30}\n", "3:9", "such as 0:30:00"),
        ("executor: slurm\nslurm: {partition: ''}\n", "2:9", "at least 1 character"),
    ],
)
def test_a_wrong_profile_is_reported_at_its_place(tmp_path, yaml, place, message):
    path = tmp_path / "c.yaml"
    path.write_text(yaml)
    with pytest.raises(InvalidFile) as error:
        read_cluster(str(path))
    assert f"c.yaml:{place}" in str(error.value)
    assert message in str(error.value)


def test_shell_in_a_setting_of_slurm_is_quoted(tmp_path):
    settings = profile(tmp_path, "executor: slurm\nslurm: {partition: 'x; touch PWNED'}\n")
    assert "--partition='x; touch PWNED'" in script(settings, tmp_path, "s", 1)


def profile(tmp_path, text):
    (path := tmp_path / "c.yaml").write_text(text)
    return read_cluster(str(path)).profile


@pytest.mark.parametrize(
    ("keys", "slots"),
    [
        ("gpus: 1\ngpus_per_node: 4\nslurm: {exclusive: true}", 4),
        ("gpus: 1\ngpus_per_node: 4\nslurm: {}", 1),
        ("gpus: 1\nslurm: {exclusive: true}", 1),
        ("gpus: 0\ngpus_per_node: 4\nslurm: {exclusive: true}", 1),
    ],
)
def test_runs_share_a_node_only_where_it_is_handed_out_whole(tmp_path, keys, slots):
    assert profile(tmp_path, f"executor: slurm\n{keys}\n").slots == slots


def test_this_machine_has_a_slot_for_each_of_its_gpus(tmp_path):
    assert profile(tmp_path, "executor: local\ngpus: 1\ngpus_per_node: 8\n").slots == 8
    assert profile(tmp_path, "executor: local\n").slots == 1


@pytest.mark.parametrize(
    ("keys", "seconds"),
    [
        ("", 120),
        ("time_limit: 12:00:00", 120),
        ("time_limit: 0:01:00", 15),
        ("time_limit: 0:01:00\ngrace: 0:00:50", 50),
    ],
)
def test_the_grace_is_as_given_else_two_minutes_or_a_quarter_of_a_short_limit(tmp_path, keys, seconds):
    assert profile(tmp_path, f"executor: local\n{keys}\n").grace_seconds == seconds


def test_checkpoints_are_as_far_apart_as_the_profile_says(tmp_path):
    assert profile(tmp_path, "executor: local\ncheckpoint_every: 0:30:00\n").checkpoint_seconds == 1800
    assert profile(tmp_path, "executor: local\n").checkpoint_seconds is None


def test_a_rehearsal_goes_where_debug_says_and_is_otherwise_like_a_run(tmp_path):
    alps = read_cluster("alps").profile
    rehearsal = alps.rehearsal
    assert (rehearsal.slurm.partition, rehearsal.time_limit, rehearsal.max_queued) == ("debug", "0:20:00", 2)
    assert (rehearsal.slurm.constraint, rehearsal.container) == (alps.slurm.constraint, alps.container)
    assert (alps.slurm.partition, alps.time_limit) == ("normal", "12:00:00"), (
        "the profile itself is as it was"
    )
    text = script(rehearsal, tmp_path, "study", 1)
    assert "#SBATCH --partition=debug" in text.splitlines()
    assert "#SBATCH --time=20" in text.splitlines()
    plain = profile(tmp_path, "executor: slurm\nslurm: {partition: p}\n")
    assert plain.rehearsal is plain


@pytest.mark.parametrize("name", sorted(profile_files()))
def test_every_shipped_profile_that_takes_whole_nodes_says_how_many_gpus_they_have(name):
    profile = read_cluster(name).profile
    assert not (profile.slurm and profile.slurm.exclusive) or profile.gpus_per_node


@pytest.mark.refused
def test_an_unknown_profile_names_the_valid_ones():
    with pytest.raises(UserError, match="no profile 'alp' .did you mean 'alps'.*teaching"):
        read_cluster("alp")


def test_memory_and_time_are_read_exactly():
    assert parse_memory("1.5GiB") == 3 * 2**29
    assert parse_time("1-02:03:04") == 93784
    assert parse_time("0:00:30") == 30
