"""A stand-in for torch and the trainer: a job then takes half a second of processor time, not two and a half.

For tests of what happens around training: it keeps the trainer's contract with the job (records in order, a
checkpoint in the right format when asked, resuming from one), but its checkpoints hold no tensors.
"""

import importlib.util
import math
import os
import signal
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

STEP_SECONDS = 0.001
SAVE_SECONDS = float(os.environ.get("SAVE_SECONDS", "0"))  # as if the model were large


class NoTensors(dict):
    """A model's tensors, of which there are none; a random generator's state is asked for by name."""

    def __missing__(self, name):
        return None


class OutOfMemoryError(RuntimeError):
    """Named as torch's own."""


def fail(world, step):
    """Fail as RANK_FAULT says, RANK:STEP:KIND."""
    rank, at, kind = os.environ.get("RANK_FAULT", "-1:0:none").split(":")
    if (world.place.rank, step) == (int(rank), int(at)):
        if kind == "oom unheard":  # what it prints goes to a disk that is full
            os.dup2(os.open("/dev/full", os.O_WRONLY), sys.stderr.fileno())
        if kind.startswith("oom"):
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. If reserved memory is")
        if kind == "wait":  # in the first attempt, until somebody ends it
            while "attempt-1" in Path(f"/proc/self/fd/{sys.stderr.fileno()}").readlink().parts:
                time.sleep(1)
            return
        os.kill(os.getpid(), signal.SIGKILL)


def train(config, source, report, checkpoints=None, judge=None, audited=None, world=None):
    """Do what `model.training.trainer.train` does, without a model."""
    from model.record.records import StepRecord, now
    from model.training import checkpoint
    from model.training.keeper import Keeper

    checkpoint._tensors = lambda state: time.sleep(SAVE_SECONDS) or NoTensors()
    keeper = Keeper(
        checkpoints,
        checkpoint.TrainingState(config, source.fingerprint(), None, None),
        world,
    )
    done, position = keeper.start()
    settings, last = config.train, done
    with keeper:
        for step in range(done + 1, settings.steps + 1):
            time.sleep(STEP_SECONDS)
            fail(world, step)
            keep = keeper.due(step)
            if keep or step == 1 or step % settings.log_every == 0 or step == settings.steps:
                tokens = (step - last) * settings.batch_size * settings.sequence_length
                record = StepRecord(
                    step=step,
                    steps=step - last,
                    time=now(),
                    loss=5.0 + 1 / math.sqrt(step),
                    learning_rate=settings.learning_rate,
                    grad_norm=1.0,
                    step_seconds=STEP_SECONDS,
                    tokens=tokens,
                    training_tokens=tokens,
                    memory_bytes=2**20,
                )
                last = step
                if world.is_first:
                    report(record)
                if keep:
                    keeper.keep(step, position)


def save(folder, state, step, position, world, group, hold=None):
    """Do what `model.training.parallel.shards.save` does: of a run that stops, nobody leaves before its checkpoint is there."""
    from model.training import checkpoint

    if world.is_first:
        checkpoint.save(folder, state, step, position, hold or checkpoint.tensorfile.passing)
    if hold is None:
        world.gather(None)


def load(folder, state, _world):
    """Do what `model.training.parallel.shards.load` does."""
    from model.training import checkpoint

    return checkpoint.load(folder, state)


class Backends(ModuleType):
    """`model.attention.auto`, whose `backend` takes every case."""

    @property
    def backend(self):
        from model.attention import Backend, Launches

        return Backend("stand-in", lambda case: [], lambda *tensors: None, Launches(free=True))


def module(name, **contents):
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(contents)


def install():
    """Put the stand-ins where the job will import them from."""
    module(
        "torch",
        __version__="stand-in",
        Tensor=None,
        uint8=None,
        get_num_threads=lambda: 1,
        empty=lambda *shape, dtype: None,
        set_rng_state=lambda state: None,
        device=lambda name: name,
    )
    spec = importlib.util.spec_from_file_location(
        "model.training.parallel.world", Path(__file__).with_name("stand_in_world.py")
    )
    sys.modules["model.training.parallel.world"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["model.training.parallel.world"])
    module("model.training.trainer", train=train)
    module("model.training.parallel.shards", connect=lambda: "group", save=save, load=load)
    module("model.attention.verify.accuracy", judge=None)
    module("runner.job.admission", admit=lambda *arguments: SimpleNamespace(key="stand-in"))
    around = dict.fromkeys(("judge_call", "keep_audit", "profile_steps"), lambda *arguments: None)
    ceilings = {"note_ceilings": lambda context: context.note(no_ceilings="stand-in")}
    module("runner.job.tasks._around", **around, **ceilings)
    sys.modules["model.attention.auto"] = Backends("model.attention.auto")
