"""Translates a profile into batch scripts: submitit's parameters for sbatch and srun, and a job's command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.inputs import container
from runner.inputs.batch import asks_for_gpus, counts_gpus, cpus_of, gres_for, quoted
from runner.inputs.profile import Profile, Slurm
from runner.plan.layout import Layout, layout
from runner.state import culprit
from runner.state.attempts import JobShape
from runner.state.code import snapshot

_HOST = Path(__file__).with_name("host.sh")


def script(profile: Profile, folder: Path, name: str, shape: JobShape, count: int) -> str:
    """The batch script that `submit` would pass to sbatch for `count` runs of a shape. Needs no Slurm."""
    from submitit.slurm import slurm

    share = layout(profile, shape.processes).runs
    runs = [f"RUN_{number}/1" for number in range(count)]
    packs = [runs[start : start + share] for start in range(0, count, share)]
    limit = profile.max_parallel // share
    parameters, command = request(profile, folder, name, shape, packs, limit, snapshot.current())
    several: dict[str, Any] = {"map_count": len(packs)} if len(packs) > 1 else {}
    return slurm._make_sbatch_string(command=command, folder=folder, **parameters, **several)


def request(
    profile: Profile,
    folder: Path,
    name: str,
    shape: JobShape,
    packs: Sequence[Sequence[str]],
    limit: int,
    code: str | None,
) -> tuple[dict[str, Any], str]:
    """Submitit's parameters, and the command of a job.

    Args:
        packs: the runs of each element, as `RUN/ATTEMPT`.
    """
    several, job = len(packs) > 1, layout(profile, shape.processes)
    assert profile.slurm
    parameters = _parameters(profile, name, shape, job, limit)
    # The script's lines before srun: the host's part, the profile's lines and variables, and what the command
    # refers to: how it enters the snapshot, and the runs.
    ours = {
        "ASSAY_HOST_SUFFIX": profile.slurm.host_suffix,
        "ASSAY_SHARED_GPUS": "yes" if _shares_unrequested_gpus(profile.slurm, job) else None,
    }
    enter, start = (shlex.quote(snapshot.source_text(f"runner/{module}.py")) for module in ("slurm", "start"))
    parameters["setup"] = [
        f"assay_jobs={shlex.quote(str(folder))} assay_requeue={'yes' if profile.requeue else ''}",
        f"assay_name={shlex.quote(name)} assay_limit={limit if 0 < limit < len(packs) else ''}",
        *_HOST.read_text(encoding="utf-8").splitlines(),
        f'echo "{culprit.START}${{SLURM_RESTART_COUNT:-0}}" >&2',
        "trap 'assay_failed $? $LINENO' ERR",
        *profile.slurm.setup,
        "trap - ERR; set +eu",
        *(f"export {key}={quoted(value)}" for key, value in profile.env.items()),
        # Also where there is nothing to say: a launcher may itself be in such a job.
        *(f"export {key}={shlex.quote(value or '')}" for key, value in ours.items()),
        f"enter={enter}",
        f"start={start}",
        f"runs=({shlex.join(' '.join(pack) for pack in packs)})",
    ]
    if shape.processes > 1:  # one output file per node; submitit asks for one per process
        log = f"{folder}/{'%A_%a' if several else '%j'}_%n_log"
        parameters["srun_args"] += [f"--output={log}.out", f"--error={log}.err"]
    home = str(snapshot.path_of(folder.parent, code)) if code else ""
    # The first of the runs if this is no array, since a launcher's own index may be inherited.
    own = "${runs[SLURM_ARRAY_TASK_ID]}" if several else "${runs[0]}"
    python = " ".join(map(quoted, [*profile.python_command, "-P", "-u", "-c"]))
    return parameters, f'{python} "$enter" {shlex.join([str(folder.parent), home])} "$start" {own}'


def _parameters(profile: Profile, name: str, shape: JobShape, job: Layout, limit: int) -> dict[str, Any]:
    """Submitit's parameters, without the script's lines before srun."""
    assert profile.slurm
    seconds = shape.time_limit_seconds
    tasks, memory, cpus = job.per_node, shape.memory_bytes, shape.cpus or profile.cpus or 1
    slurm = _with_gpus_of_job(profile.slurm, profile, job)
    gres = slurm.options.get("gres", slurm.gres)
    counted = profile.gpus and slurm.ask_gpus and not asks_for_gpus(gres)
    requeue = {"requeue": True} if profile.requeue else {"no-requeue": True}  # the default varies by cluster
    asked: dict[str, Any] = {
        "job_name": name,
        "mem": f"{memory * tasks // 2**20}M" if memory and slurm.ask_memory else None,
        "cpus_per_task": cpus,
        "gpus_per_node": profile.gpus * tasks if counted else None,
        "nodes": job.nodes,
        "ntasks_per_node": tasks if tasks > 1 else None,
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "gres": slurm.gres,
        "exclusive": slurm.exclusive or None,
        "array_parallelism": limit,
        "srun_args": [
            f"--cpus-per-task={cpus}",  # which srun does not take from sbatch
            *(["--export=ALL"] if "export" in slurm.options else []),
            *_grouping_options(slurm, profile, job),
            *(word for word in slurm.srun_args if not cpus_of(word)),
            *container.srun_args(profile.container),
        ],
        "teardown": ["assay_code=$?", "assay_go_on", 'exit "$assay_code"'],
    }
    # Submitit requests SIGUSR2 well before the limit. With a short limit it arrives before Python handles it,
    # and kills the run. Runs use their own deadline instead, so request a signal that does nothing.
    options: dict[str, Any] = {"signal": "CONT@1", "ntasks": tasks * job.nodes}
    if slurm.reservation:
        options["reservation"] = slurm.reservation
    given = {key: value for key, value in asked.items() if value is not None}
    return {
        **given,
        "additional_parameters": {**options, **requeue, **slurm.options},
        "time": -(-seconds // 60) if seconds else None,  # minutes, rounded up; submitit's default is five
        "wckey": None,  # clusters that track wckeys reject submitit's default
    }


def _shares_unrequested_gpus(slurm: Slurm, job: Layout) -> bool:
    """Whether runs share a node whose GPUs Slurm is not asked for, so that each takes its own of them."""
    return job.runs > 1 and not slurm.ask_gpus


def _with_gpus_of_job(slurm: Slurm, profile: Profile, job: Layout) -> Slurm:
    """The options for jobs of several processes, of which the launcher decides who has which GPUs of a node.

    Processes of one run see all of them, to copy between them.
    """
    if job.is_single or not profile.gpus:
        return slurm
    gpus, options = profile.gpus * job.per_node, slurm.options
    if asks_for_gpus(options.get("gres")):
        options = {**options, "gres": gres_for(str(options["gres"]), gpus)}
    options = {
        name: value for name, value in options.items() if not counts_gpus(f"--{name}") or name == "gres"
    }
    arguments = [word for word in slurm.srun_args if not counts_gpus(word)]
    gres = gres_for(slurm.gres, gpus) if slurm.gres and asks_for_gpus(slurm.gres) else slurm.gres
    return slurm.model_copy(update={"gres": gres, "options": options, "srun_args": arguments})


def _grouping_options(slurm: Slurm, profile: Profile, job: Layout) -> list[str]:
    """Options of srun that say which processes end together, and share out the GPUs of a node among its runs.

    A failed run leaves the other runs of its job alone; a failed process ends the others of its run.
    """
    if job.is_single:
        return []
    if job.runs == 1:
        order = ["--distribution=block"] if job.nodes > 1 else []  # ranks next to each other share a node
        return [*order, "--kill-on-bad-exit=1", "--wait=60"]
    bound = job.processes > 1 or _shares_unrequested_gpus(slurm, job)
    return [*([] if bound else [f"--gpus-per-task={profile.gpus}"]), "--kill-on-bad-exit=0", "--wait=0"]
