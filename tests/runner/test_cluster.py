"""Profiles say how runs start, and cannot smuggle anything into a batch script."""

import pytest

from model.errors import UserError
from runner.cluster import parse_memory, parse_time, profile_files, read_cluster
from runner.errors import InvalidFile
from runner.slurm import script


@pytest.mark.parametrize("name", sorted(profile_files()))
def test_every_shipped_profile_is_valid_and_described(name):
    assert read_cluster(name).profile.description


@pytest.mark.parametrize("name", [name for name in sorted(profile_files()) if read_cluster(name).profile.slurm])
def test_every_slurm_profile_renders_a_script_of_its_own_settings(name, tmp_path):
    profile = read_cluster(name).profile
    text = script(profile, tmp_path / ".submitit", "study", 10)
    assert f"#SBATCH --array=0-9%{min(10, profile.max_parallel)}" in text
    assert f"#SBATCH --cpus-per-task={profile.cpus}" in text
    assert "wckey" not in text
    assert all(argument in text for argument in profile.slurm.srun_args)


def test_every_setting_reaches_the_script(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        'executor: slurm\ncpus: 3\ngpus: 2\nmemory: 1.5GiB\ntime_limit: 0:01:30\nenv: {A: "b c"}\n'
        "slurm: {partition: p, account: a, qos: q, reservation: r, constraint: 'x&y', exclusive: true,\n"
        "  setup: [module load cuda], options: {hint: nomultithread}, srun_args: [--environment=e]}\n"
    )
    text = script(read_cluster(str(path)).profile, tmp_path, "study", 1)
    for line in (
        "#SBATCH --partition=p", "#SBATCH --account=a", "#SBATCH --qos=q", "#SBATCH --reservation=r",
        "#SBATCH --constraint='x&y'", "#SBATCH --exclusive", "#SBATCH --gpus-per-node=2", "#SBATCH --mem=1536M",
        "#SBATCH --time=2", "#SBATCH --hint=nomultithread", "module load cuda", "export A='b c'",
    ):  # fmt: skip
        assert line in text.splitlines(), line
    assert "--environment=e" in text.splitlines()[-1]


@pytest.mark.parametrize(
    ("yaml", "place", "says"),
    [
        ("executor: slrum\n", "1:1", "'local' or 'slurm'"),
        ("executor: slurm\n", "1:1", "needs a `slurm:` section"),
        ("executor: local\nslurm: {}\n", "1:1", "needs executor: slurm"),
        ("executor: local\nmemory: 3GB\n", "2:1", "512MiB"),
        ("executor: local\nmemory: 0GiB\n", "2:1", "512MiB"),
        ("executor: local\ntime_limit: 90\n", "2:1", "string"),
        ("executor: local\ntime_limit: 1:90:00\n", "2:1", "0:30:00"),
        ("executor: local\nmax_parallel: 0\n", "2:1", "greater than 0"),
        ("executor: slurm\nslurm:\n  partion: x\n", "3:3", "did you mean 'partition'"),
        ('executor: slurm\nslurm: {partition: "x\\ntouch PWNED #"}\n', "2:9", "U+000A"),
        ("executor: slurm\nslurm: {partition: 'x; touch PWNED'}\n", "", ""),
        ("executor: slurm\nslurm: {partition: 'x`id`'}\n", "2:9", "only letters"),
        ("executor: slurm\nslurm: {account: '$(id)'}\n", "2:9", "only letters"),
        ('executor: slurm\nslurm: {setup: ["a\\nb"]}\n', "2:17", "U+000A"),
        ('executor: local\nenv: {A: "x\\ny"}\n', "2:7", "U+000A"),
    ],
)
def test_a_wrong_profile_is_reported_at_its_place(tmp_path, yaml, place, says):
    path = tmp_path / "c.yaml"
    path.write_text(yaml)
    if not says:  # harmless: submitit quotes it
        assert "--partition='x; touch PWNED'" in script(read_cluster(str(path)).profile, tmp_path, "s", 1)
        return
    with pytest.raises(InvalidFile) as error:
        read_cluster(str(path))
    assert f"c.yaml:{place}" in str(error.value)
    assert says in str(error.value)


def test_an_unknown_profile_names_the_valid_ones():
    with pytest.raises(UserError, match="no profile 'alp' .did you mean 'alps'.*teaching"):
        read_cluster("alp")


def test_memory_and_time_are_read_exactly():
    assert parse_memory("1.5GiB") == 3 * 2**29
    assert parse_time("1-02:03:04") == 93784
    assert parse_time("0:00:30") == 30
