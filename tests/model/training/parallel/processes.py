"""Runs a function in the processes of a run, connected by gloo on the CPU and by NCCL on GPUs."""

import importlib
import multiprocessing
import os
import socket
import time
import traceback

import torch

from model.record.config import ParallelConfig
from model.training.parallel.place import Place
from model.training.parallel.world import join
from tests.conftest import PATIENCE_SECONDS


def together(function, *given, device="cpu", **parallel):
    """What `function(world, *given)` returns in each process of a run, by rank; their number follows from `parallel`.

    On GPUs each process has its own, and starts anew: CUDA cannot be forked.
    """
    if device == "cpu":
        importlib.import_module("torch._dynamo")  # for seconds; so that each fork has it
    parallel = ParallelConfig(**parallel)
    context = multiprocessing.get_context("fork" if device == "cpu" else "spawn")
    listening = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listening.getsockname()[1]}"
    pipes, children = [], []
    for rank in range(parallel.processes):
        receiver, sender = context.Pipe(duplex=False)
        place = Place(rank, parallel.processes, rank, address)
        settings = (device, listening if rank == 0 else None, function, given)
        children.append(
            context.Process(target=_child, args=(sender, place, parallel, *settings), daemon=True)
        )
        children[-1].start()
        sender.close()
        pipes.append(receiver)
    listening.close()
    try:
        answers = [_answer(pipe) for pipe in pipes]
    finally:
        for child in children:
            child.kill()
            child.join()
    failures = [answer for failed, answer in answers if failed]
    assert not failures, "\n".join(failures)
    return [answer for _, answer in answers]


def _answer(pipe):
    if not pipe.poll(PATIENCE_SECONDS):
        return True, "it did not answer in time"
    try:
        return pipe.recv()
    except EOFError:
        return True, "it died"


def _child(pipe, place, parallel, device, listening, function, arguments):
    """Leaves without tearing torch down: gloo aborts if other processes are gone already.

    Where it succeeds, it stays until it is killed: others may still meet by the store that rank 0 has.
    """
    parent = os.getppid()
    torch.set_num_threads(1)
    try:
        if device == "cuda":
            torch.cuda.set_device(place.local_rank)
        local_device = torch.device(device, place.local_rank if device == "cuda" else None)
        world = join(place, parallel, local_device, listening)
        pipe.send((False, function(world, *arguments)))
        while os.getppid() == parent:
            time.sleep(0.1)
    except BaseException:
        pipe.send((True, traceback.format_exc()))
    pipe.close()
    os._exit(0)
