"""Containers and wrappers become the right words on the srun line, and no text in a profile becomes more."""

import json
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from model.record.errors import UserError
from runner.inputs import batch, container
from runner.inputs.document import InvalidFile, parse
from runner.inputs.profile import Profile, read_cluster
from runner.inputs.validation import validated

FOLDER = Path("/shared/runs/study/.submitit")


def profile(text):
    """The profile of a YAML text over a Slurm profile's least."""
    base = "" if "executor" in text else "executor: slurm\nslurm: {}\n"
    return validated(parse(base + text, "c.yaml"), Profile)


def rendered(profile):
    """The batch script of an array of four runs, without the code that it carries."""
    from runner import slurm, start
    from runner.execute.slurm import script as module
    from runner.execute.slurm.script import script
    from runner.state.attempts import JobShape

    shape = JobShape(profile.memory_bytes, profile.time_limit_seconds, profile.cpus)
    text = script(profile, FOLDER, "study", shape, 4)
    host = Path(module.__file__).with_name("host.sh").read_text()
    carried = [host, *(shlex.quote(Path(code.__file__).read_text()) for code in (slurm, start))]
    for code in carried:
        assert code in text
        text = text.replace(code, "")
    return text


def srun(profile):
    """The words of the script's srun line, as a shell reads them."""
    (line,) = [line for line in rendered(profile).splitlines() if line.startswith("srun ")]
    return shlex.split(line)


KINDS = {
    "none": ("{kind: none}", "", "/opt/python"),
    "edf by name": ("{kind: edf, name: my-env}", "--environment=my-env", "/opt/python"),
    "edf by path": ("{kind: edf, name: /u/my env.toml}", "'--environment=/u/my env.toml'", "/opt/python"),
    "uenv": ("{kind: uenv, name: 'pytorch/v2.6.0:v1'}", "--uenv=pytorch/v2.6.0:v1", "/opt/python"),
    "uenv with a view": (
        "{kind: uenv, name: 'prgenv-gnu/24.7:v3,editors/24.7:v2', view: 'default,editors:ed'}",
        "--uenv=prgenv-gnu/24.7:v3,editors/24.7:v2 --view=default,editors:ed",
        "/opt/python",
    ),
    "pyxis": (
        "{kind: pyxis, image: 'nvcr.io#nvidia/pytorch:25.06-py3', mounts: ['/a:/b', '/c:/c:ro']}",
        "'--container-image=nvcr.io#nvidia/pytorch:25.06-py3' --container-mounts=/a:/b,/c:/c:ro",
        "/opt/python",
    ),
    "pyxis without mounts": ("{kind: pyxis, image: /x.sqsh}", "--container-image=/x.sqsh", "/opt/python"),
    "apptainer": (
        "{kind: apptainer, image: /x.sif, binds: ['/a b:/b', /c]}",
        "",
        "apptainer exec --nv --bind '/a b:/b' --bind /c /x.sif /opt/python",
    ),
    "singularity with AMD's driver": (
        "{kind: apptainer, command: singularity, rocm: true, image: /x.sif}",
        "",
        "singularity exec --rocm /x.sif /opt/python",
    ),
    "apptainer without a GPU": (
        "{kind: apptainer, image: 'docker://ubuntu', nv: false}",
        "",
        "apptainer exec docker://ubuntu /opt/python",
    ),
}


@pytest.mark.parametrize(("yaml", "arguments", "command"), KINDS.values(), ids=KINDS)
def test_each_kind_of_container_is_rendered_as_its_documentation_says(yaml, arguments, command):
    configuration = profile(f"python: /opt/python\ncontainer: {yaml}\n")
    assert shlex.join(container.srun_args(configuration.container)) == arguments
    assert shlex.join(configuration.python_command) == command


@pytest.mark.parametrize(("yaml", "arguments", "command"), KINDS.values(), ids=KINDS)
def test_the_wrapper_stands_right_before_python_in_the_container_or_out_of_it(yaml, arguments, command):
    configuration = profile(f"python: /opt/python\nwrapper: [numactl, --membind=0-3]\ncontainer: {yaml}\n")
    assert shlex.join(configuration.python_command) == command.replace(
        "/opt/python", "numactl --membind=0-3 /opt/python"
    )


@pytest.mark.parametrize(("yaml", "arguments", "command"), KINDS.values(), ids=KINDS)
def test_the_batch_script_starts_python_in_the_container(yaml, arguments, command):
    """The container is chosen on the srun line and never on sbatch, and the command follows in one line."""
    words = srun(profile(f"python: /opt/python\nwrapper: [numactl, -N, '0']\ncontainer: {yaml}\n"))
    ours = [*shlex.split(command)[:-1], "numactl", "-N", "0", "/opt/python", "-P"]
    start = words.index(ours[0])
    assert words[start : start + len(ours)] == ours
    assert words[start - len(shlex.split(arguments)) : start] == shlex.split(arguments)


def test_the_golden_script_of_alps():
    """The whole script of the shipped profile, but for the paths and the module that it ends with."""
    text = rendered(read_cluster("alps").profile)
    for line in (
        "#SBATCH --constraint='thp_never&nvidia_vboost_enabled'", "#SBATCH --exclusive",
        "#SBATCH --partition=normal", "#SBATCH --time=720", "#SBATCH --ntasks-per-node=4", "#SBATCH --gpus-per-node=4",
    ):  # fmt: skip
        assert line in text.splitlines()
    assert not [line for line in text.splitlines() if line.startswith("#SBATCH") and "environment" in line]
    (line,) = [line for line in text.splitlines() if line.startswith("srun ")]
    assert "--cpus-per-task=72 --gpus-per-task=1 --kill-on-bad-exit=0 --wait=0 --environment=assay" in line
    assert " --environment=assay numactl --membind=0-3 python3 -P" in line


@pytest.mark.refused
@pytest.mark.parametrize(
    ("yaml", "place", "message"),
    [
        ("container: {kind: docker, image: x}", "2:13", "did you mean 'apptainer'|valid: none, edf, uenv, pyxis, apptainer"),
        ("container: {name: x}", "2:1", "missing key 'kind'.*none, edf, uenv, pyxis, apptainer"),
        ("container: {kind: edf}", "2:1", "missing key 'name'"),
        ("container:\n  kind: edf\n  nam: x\n", "4:3", "unknown key 'nam' .did you mean 'name'. valid: kind, name"),
        ("container: {kind: apptainer, image: x, bind: [a]}", "2:40", "did you mean 'binds'. valid: kind, image, command, nv, rocm, binds"),
        ("container:\n  kind: pyxis\n  image: x\n  mounts: ['/a,/b']\n", "5:12", "comma"),
        ("container: {kind: apptainer, image: --writable}", "2:30", "read as an option"),
        ("container: {kind: edf, name: ''}", "2:24", "at least 1 character"),
        ("container: {kind: edf, name: $SCRATCH/x.toml}", "2:24", "is passed on verbatim, without shell expansion"),
        ("container: {kind: edf, name: ../x.toml}", "2:24", "'..'"),
        ('container: {kind: edf, name: "x\\ny"}', "2:24", "U\\+000A"),
        ("container: edf", "2:1", "keys and values of its own"),
        ("container: {kind: edf, name: x}", "2:1", "needs `python:`"),
        ("python: python3\ncontainer: {kind: edf, name: x}\nslurm: {srun_args: [--environment=y]}", "4:1", "keep one of the two"),
        ("executor: local\ncontainer: {kind: uenv, name: x}", "2:1", "needs executor: slurm"),
        ("wrapper: [--membind=0]", "2:1", "wrapper must start with a command"),
        ("wrapper: [taskset, $(CPUS)]", "2:20", "only .NAME and ..NAME. are expanded; write .. for a dollar sign"),
        ("wrapper: [taskset, ~/x]", "2:20", "write it out in full"),
    ],
)  # fmt: skip
def test_a_wrong_container_is_reported_at_its_key_with_the_valid_choices(tmp_path, yaml, place, message):
    path = tmp_path / "c.yaml"
    executor = "" if "executor:" in yaml else "executor: slurm\n"
    slurm = "" if "slurm:" in yaml or "local" in yaml else "\nslurm: {}\n"
    path.write_text(f"{executor}{yaml}{slurm}")
    with pytest.raises(InvalidFile, match=message) as error:
        read_cluster(str(path))
    assert f"c.yaml:{place}: " in str(error.value)


# Every string of a profile that reaches the script, as the keys that lead to it. `setup` is shell on purpose.
FIELDS = [
    ("slurm", "partition"), ("slurm", "account"), ("slurm", "qos"), ("slurm", "reservation"),
    ("slurm", "constraint"), ("slurm", "gres"), ("slurm", "srun_args", 0), ("slurm", "options", "hint"),
    ("env", "HINT"), ("python",), ("wrapper", 1), ("container", "name"), ("container", "view"),
    ("container", "image"), ("container", "mounts", 0), ("container", "binds", 0),
]  # fmt: skip
NASTY = [
    "x\ntouch PWNED #",
    "'; touch PWNED; '",
    "$(touch PWNED)",
    "`touch PWNED`",
    "a\0b",
    "../../etc",
    '"',
    "'",
]
NASTY += [
    "\\",
    "🙂",
    "a b",
    "-x",
    "--wrap=id",
    "x\x85y",
    "x\u2028y",
    "\ud800",
    "x\u202ey",
    "~",
    "*",
    "",
    " ",
    "#",
]
TEXT = st.one_of(st.text(max_size=30), st.sampled_from(NASTY), st.lists(st.sampled_from(NASTY)).map("".join))


def document(field, text):
    """A profile's data with this text in this field."""
    pyxis, apptainer = {"kind": "pyxis", "mounts": ["x"]}, {"kind": "apptainer", "binds": ["x"]}
    kinds = {
        "name": {"kind": "edf"}, "view": {"kind": "uenv", "name": "x"}, "image": apptainer,
        "mounts": pyxis | {"image": "x"}, "binds": apptainer | {"image": "x"},
    }  # fmt: skip
    data = {
        "executor": "slurm", "python": "python3", "env": {}, "wrapper": ["numactl", "x"],
        "container": kinds[field[1]] if field[0] == "container" else {"kind": "none"},
        "slurm": {"srun_args": ["x"], "options": {}},
    }  # fmt: skip
    *parents, last = field
    section = data
    for key in parents:
        section = section[key]
    section[last] = text
    return data


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: ".".join(map(str, field)))
@settings(max_examples=60, deadline=None, derandomize=True)
@given(text=TEXT, escaped=st.booleans())
@example(text="x\ntouch PWNED #", escaped=True)
@example(text="\ud800", escaped=True)
@example(text="'; touch PWNED; '", escaped=False)
def test_any_text_in_any_field_is_refused_or_inert(field, text, escaped):
    """What is not refused is one word for the shell, and its script has the lines of a harmless one."""
    try:
        configuration = validated(
            parse(json.dumps(document(field, text), ensure_ascii=escaped), "c.yaml"), Profile
        )
    except InvalidFile:
        return
    script = rendered(configuration)
    script.encode()  # it can be written to a file
    harmless = rendered(validated(parse(json.dumps(document(field, "x")), "c.yaml"), Profile))
    assert [line[:7] for line in script.split("\n")] == [line[:7] for line in harmless.split("\n")]
    assert len(script.splitlines()) == len(harmless.splitlines()), "no line break of any kind"
    (line,) = [line for line in script.split("\n") if line.startswith("srun ")]
    (reference,) = [line for line in harmless.split("\n") if line.startswith("srun ")]
    assert len(shlex.split(line)) == len(shlex.split(reference)), "no word more or less"
    word = lambda line: {part.partition("=")[2] for part in shlex.split(line)} | {*shlex.split(line)}  # noqa: E731
    literal = text.replace("$$", "$")  # where variables are expanded, `$$` is a dollar sign
    assert [line for line in script.split("\n") if {text, literal} & word(line.removeprefix("#SBATCH "))]


def test_variables_in_env_python_and_wrapper_are_expanded_by_the_script_and_nothing_else_is():
    """A price of $5, written `$$5`, stays one, and so does what only looks like shell."""
    configuration = profile(
        "python: ${SCRATCH}/env/bin/python\nwrapper: [echo, '$NODE \"x\" \\ $$5 ; |']\nenv: {CACHE: $SCRATCH/a b}\n"
    )
    lines = rendered(configuration).splitlines()
    (export,) = [line for line in lines if line.startswith("export CACHE")]
    (start,) = [line for line in lines if line.startswith("srun ")]
    command = start[start.index("echo ") : start.index(" -P ")]
    prints = command.replace("echo", r"printf %s\\n", 1)
    stdout = subprocess.run(
        ["bash", "-c", f"{export}\nprintf '%s\\n' \"$CACHE\"\n{prints}"],
        env={"SCRATCH": "/s p", "NODE": "n1"}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert stdout.splitlines() == ["/s p/a b", 'n1 "x" \\ $5 ; |', "/s p/env/bin/python"]


def test_variables_of_a_profile_for_this_machine_are_expanded_here(monkeypatch):
    monkeypatch.setenv("SCRATCH", "/s")
    configuration = profile(
        "executor: local\nenv: {CACHE: $SCRATCH/a, PRICE: $$5}\npython: $SCRATCH/python\n"
    )
    assert (configuration.env_here, configuration.python_command) == (
        {"CACHE": "/s/a", "PRICE": "$5"},
        ["/s/python"],
    )
    monkeypatch.delenv("SCRATCH")
    with pytest.raises(InvalidFile, match="c.yaml:2:1: .*SCRATCH is not set here"):
        profile("executor: local\nenv: {CACHE: $SCRATCH/a}\n")


@pytest.mark.refused
@pytest.mark.parametrize("name", ["A=1; touch PWNED #", "A B", "1A", "", "A\n", "Ä"])
def test_the_name_of_an_environment_variable_cannot_be_shell(name):
    with pytest.raises(InvalidFile, match="not a valid environment variable name"):
        profile(json.dumps({"executor": "slurm", "slurm": {}, "env": {name: "x"}}))


@pytest.mark.refused
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x --wrap", "is not an sbatch option"),
        ("--x", "is not an sbatch option"),
        ("array", "set by the launcher"),
        ("open_mode", "launcher"),
        ("job-n", "set by the launcher"),
        ("clusters", "from its own login node"),
    ],
)
def test_an_option_of_sbatch_cannot_be_another_one_or_one_of_ours(name, message):
    with pytest.raises(InvalidFile, match=message):
        profile(json.dumps({"executor": "slurm", "slurm": {"options": {name: "x"}}}))


@pytest.mark.refused
@pytest.mark.parametrize("path", ["/a\nb", "/a\x00b", "/a\u2028b"])
def test_a_path_with_a_line_break_cannot_reach_a_script(path):
    with pytest.raises(UserError, match="--root"):
        batch.check_path(Path(path))
    batch.check_path(Path("/a b/é🙂'\"$"))
