"""Profiled steps are the run's own, after its end, and their time is split by what they do."""

import itertools
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from torch._C._autograd import DeviceType

from model import attention
from model.inference.infer import Inferred, infer
from model.measure.parts import PARTS, part_of
from model.measure.profiler import watched
from model.record import backends
from model.record.config import ParallelConfig, RunConfig
from model.record.speed import StepProfile
from model.record.text import Source
from model.training.parallel.world import ALONE
from model.training.profile import MARK, _kernels, _operators, _spans, counted, profiled
from model.training.trainer import train
from tests.model.conftest import run_config
from tests.model.inference.test_infer import PROMPT, decoders
from tests.model.inference.test_infer import run_config as inference
from tests.model.training.parallel.processes import together

CASE = run_config().attention_case
HERE = [name for name in backends.names() if not attention.load(name).unsupported_reasons(CASE)]
FORWARD = ("products", "attention", "elementwise")
BUSY = ("products", "attention", "loss", "optimizer", "elementwise")


def trained(config, corpus):
    return train(config, Source(corpus), lambda record: None)


def profile(config, corpus):
    kernels = attention.load(config.attention).launches.on(config.device)
    step_profile = profiled(trained(config, corpus), "r1", 1, kernels)
    assert StepProfile.model_validate_json(step_profile.model_dump_json()) == step_profile
    return step_profile, {part.part: part.seconds for part in step_profile.parts}


@pytest.mark.parametrize("settings", [{}, {"accumulate": 2, "warmup_steps": 20}], ids=["whole", "in parts"])
def test_the_steps_are_those_that_the_run_would_do_next(corpus, settings):
    run, longer = (trained(run_config(steps=steps, **settings), corpus) for steps in (6, 9))
    profiled(run, "r1", 1, None)  # one step, on a CPU
    run.step()
    run.step()
    for name, tensor in longer.model.state_dict().items():
        assert torch.equal(tensor, run.model.state_dict()[name]), name


@pytest.mark.parametrize("name", HERE)
def test_every_part_of_a_step_on_a_cpu_is_seen(name, corpus):
    step_profile, parts = profile(run_config(name, steps=2), corpus)
    assert step_profile.steps == 1 and step_profile.reason is None and list(parts) == list(PARTS)
    assert all(parts[part] > 0 for part in BUSY)
    assert parts["communication"] == 0
    assert sum(parts.values()) == pytest.approx(step_profile.step_seconds, rel=1e-6)


def _sum_beside_a_product(world):
    """An all-reduce that a product runs beside, and one that the steps' thread waits for, as pieces."""
    numbers, square = torch.ones(2**20), torch.ones(700, 700)

    def work():
        with torch.autograd.profiler.record_function(f"{MARK}forward"):
            beside = torch.distributed.all_reduce(numbers, async_op=True)
            square @ square
            beside.wait()
            torch.distributed.all_reduce(numbers)

    work()
    return [(operator.name, operator.start, operator.end) for operator in _operators(watched("cpu", work)[1])]


def test_what_gloo_does_in_its_own_threads_is_seen_beside_the_work_of_the_step():
    for operators in together(_sum_beside_a_product, shard=2):
        sums = [(start, end) for name, start, end in operators if name == "gloo:all_reduce"]
        product = [end for name, _, end in operators if name == "aten::mm"]
        (_, first_ended), (second_began, _) = sorted(
            sums
        )  # gloo may begin after the product, but is waited for
        assert max(first_ended, *product) < second_began
        host_operators = [operator for operator in operators if not operator[0].startswith("gloo:")]
        spans = sorted((start, end) for _, start, end in host_operators)
        assert all(end < start + 1e-3 for (_, end), (start, _) in itertools.pairwise(spans))


def _profile_together(world, config, corpus):
    run = train(config, Source(corpus), lambda record: None, world=world)
    step_profile = profiled(run, "r1", 1, None)
    return {part.part: (part.seconds, part.hidden_seconds) for part in step_profile.parts}


def _steps_seen(world, config, corpus):
    """Names of the steps that a profile sees, and of those that it counts."""
    run = train(config, Source(corpus), lambda record: None, world=world)
    step, steps = run.step, []

    def marked():
        steps.append(len(steps))
        with torch.autograd.profiler.record_function(f"step {steps[-1]}"):
            step()

    run.step, event_lists = marked, []
    with patch(
        "model.training.profile.counted", lambda events: event_lists.append(events) or counted(events)
    ):
        profiled(run, "r1", 1, None)
    return [
        [event.name for event in events if event.name.startswith("step ")]
        for events in (*event_lists, counted(event_lists[0]))
    ]


def test_processes_wait_for_each_others_profilers_in_a_step_that_is_not_counted(corpus):
    config = run_config("math", steps=2)
    assert _steps_seen(ALONE, config, corpus) == [["step 0"]] * 2
    config = config.model_copy(update={"parallel": ParallelConfig(replicate=2)})
    for names in together(_steps_seen, config, corpus, replicate=2):
        assert names == [["step 0", "step 1"], ["step 1"]]


@pytest.mark.parametrize("parallel", [{"replicate": 2}, {"shard": 2}, {"tensor": 2}, {"context": 2}], ids=str)
def test_all_processes_of_a_run_do_the_profiled_steps_and_see_what_they_tell_each_other(corpus, parallel):
    single = _profile_together(ALONE, run_config("math", steps=2), corpus)
    assert single["communication"] == (0, 0)
    config = run_config("math", steps=2).model_copy(update={"parallel": ParallelConfig(**parallel)})
    for parts in together(_profile_together, config, corpus, **parallel):
        assert sum(parts["communication"]) > 0
        assert all(parts[part][0] > 0 for part in BUSY)


def test_activations_that_are_computed_again_are_seen_where_they_are(corpus):
    _, parts = profile(run_config("math", steps=2, checkpoint_activations=True), corpus)
    assert all(parts[part] > 0 for part in BUSY)


def inferred(config, corpus):
    """A run's profile after its last token, and seconds by phase and part."""
    run = infer(config, Source(corpus), lambda record: None, lambda records: None)
    kernels = attention.load(config.attention).launches.on(config.device)
    step_profile = profiled(run, "r1", 1, kernels)
    assert StepProfile.model_validate_json(step_profile.model_dump_json()) == step_profile
    return step_profile, {(part.phase, part.part): part.seconds for part in step_profile.parts}


@pytest.mark.parametrize("name", decoders())
def test_a_prefill_and_a_decoded_token_are_split_by_part(name, corpus):
    step_profile, parts = inferred(inference(name), corpus)
    assert step_profile.steps == 1
    for phase in ("step", "decode"):
        assert all(parts[phase, part] > 0 for part in FORWARD), parts
        assert all(parts[phase, part] == 0 for part in ("loss", "optimizer", "communication")), parts
    assert sum(parts["step", part] for part in PARTS) == pytest.approx(step_profile.step_seconds, rel=1e-6)


def test_what_only_reads_prompts_has_no_profile_of_a_token(corpus):
    _, parts = inferred(inference(new_tokens=0), corpus)
    assert {phase for phase, _ in parts} == {"step"}


def test_the_decoded_token_meets_the_median_number_of_keys(corpus):
    config, lengths = inference(new_tokens=4), []
    run = infer(config, Source(corpus), lambda record: None, lambda records: None)
    attend = run.model.blocks[0].attention.attend

    def recording_attend(q, k, v):
        lengths.append((q.shape[1], k.shape[1]))
        return attend(q, k, v)

    run.model.blocks[0].attention.attend = recording_attend
    for phase in ("step", "decode", "decode"):
        run.phases[phase].timed()
    assert lengths == [(PROMPT, PROMPT), (1, PROMPT + 2), (1, PROMPT + 2)]


def test_a_run_that_decoded_with_cuda_graphs_is_timed_with_them_and_split_without(corpus):
    """In a graph no mark says which kernels are attention's, and those of `math` have no name of their own."""
    run = infer(inference("math"), Source(corpus), lambda record: None, lambda records: None)
    replayed = []

    def replay(tokens):
        replayed.append(tuple(tokens.shape))
        return tokens, tokens

    decode = Inferred(run.config, run.model, run._cache, run._prompts_BT, replay).phases["decode"]
    decode.launched()
    assert not replayed
    decode.timed()
    assert replayed == [(run.config.inference.batch_size, 1)]


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["auto", "math", "efficient", "custom"])
def test_attention_of_a_token_that_a_cuda_graph_decoded_is_seen(name, corpus):
    model = {"dim": 1024, "layers": 4, "heads": 8, "kv_heads": 2, "ffn_dim": 4096, "vocab_size": 32768}
    config = inference(name, dtype="bfloat16", prompt_length=1024, new_tokens=8, cuda_graphs=True)
    config = RunConfig.model_validate(config.model_dump() | {"device": "cuda", "model": model})
    if reasons := attention.refusals(attention.load(name), config.attention_case):
        pytest.skip("; ".join(reasons))
    step_profile, parts = inferred(config, corpus)
    assert all(parts["decode", part] > 0 for part in FORWARD), parts
    assert not any(part.by_name for part in step_profile.parts)


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", ["auto", "cudnn", "flash", "portable"])
def test_a_prefill_and_a_decoded_token_on_a_gpu_are_split_by_part(name, compiled, corpus):
    model = {"dim": 1024, "layers": 4, "heads": 8, "kv_heads": 2, "ffn_dim": 4096, "vocab_size": 32768}
    config = inference(name, dtype="bfloat16", prompt_length=1024, new_tokens=8, compile=compiled)
    config = RunConfig.model_validate(config.model_dump() | {"device": "cuda", "model": model})
    if reasons := attention.refusals(attention.load(name), config.attention_case):
        pytest.skip("; ".join(reasons))
    step_profile, parts = inferred(config, corpus)
    assert step_profile.steps == 2
    for phase in ("step", "decode"):
        assert all(parts[phase, part] > 0 for part in FORWARD), parts
    assert sum(parts["step", part] for part in PARTS) >= 0.999 * step_profile.step_seconds


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")  # shown, not fatal: compilers warn about matters of their own
@pytest.mark.parametrize(
    "settings",
    [{}, {"compile": True}, {"loss": "linear_cross_entropy", "optimizer": "adamw_one_pass"}],
    ids=["eager", "compiled", "own kernels"],
)
@pytest.mark.parametrize("name", ["auto", "cudnn", "flash", "custom"])
def test_the_kernels_of_a_step_on_a_gpu_are_split_by_part(name, settings, corpus):
    model = {"dim": 1024, "layers": 4, "heads": 8, "kv_heads": 2, "ffn_dim": 4096, "vocab_size": 32768}
    config = run_config(name, steps=3, dtype="bfloat16", sequence_length=1024, batch_size=2, **settings)
    config = RunConfig.model_validate(config.model_dump() | {"device": "cuda", "model": model})
    if reasons := attention.load(name).unsupported_reasons(config.attention_case):
        pytest.skip("; ".join(reasons))
    step_profile, parts = profile(config, corpus)
    assert step_profile.steps == 2
    assert all(parts[part] > 0 for part in BUSY), parts
    assert parts["products"] > parts["loss"] and parts["communication"] == 0, parts
    assert sum(parts.values()) >= 0.999 * step_profile.step_seconds


class Event(SimpleNamespace):
    """What PyTorch's profiler says of one event."""

    def __init__(self, name, start, end, number=0, device=DeviceType.CPU):
        span = SimpleNamespace(start=start, end=end, elapsed_us=lambda: end - start)
        super().__init__(name=name, time_range=span, id=number, device_type=device)


def test_a_kernel_is_of_the_part_at_which_the_host_launched_it():
    """Two layers of one step: numbers join launches and kernels; operators have the same numbers."""
    host = [
        Event(f"{MARK}forward", 0, 60), Event(f"{MARK}attention", 5, 10), Event(f"{MARK}attention", 25, 30),
        Event(f"{MARK}hidden", 40, 41), Event(f"{MARK}backward", 60, 120), Event(f"{MARK}hidden gradient", 70, 71),
        *(Event(f"{MARK}{name}", moment, moment) for name, moment in (("o gradient", 75), ("qkv gradient", 80))),
        *(Event(f"{MARK}qkv gradient", moment, moment) for moment in (82, 84)),
        *(Event(f"{MARK}{name}", moment, moment) for name, moment in (("o gradient", 95), ("qkv gradient", 100))),
        Event(f"{MARK}optimizer", 120, 140), Event("aten::mul", 121, 130, 1),
        Event("assay::hopper_attention_backward", 76, 79),  # an operator of this project's, not a mark
    ]  # fmt: skip
    launch_times = {1: 6, 2: 45, 3: 65, 4: 78, 5: 83, 6: 97, 7: 125, 8: 20}
    launches = [
        Event("cudaLaunchKernel", moment, moment + 1, number) for number, moment in launch_times.items()
    ]
    kernels = [
        Event("some_kernel", 200 + 10 * n, 201 + 10 * n, n, DeviceType.CUDA) for n in (*launch_times, 9)
    ]
    marks = [Event(f"{MARK}forward", 200, 300, 77, DeviceType.CUDA)]  # as the tracer shows regions on a GPU
    events = host + launches + kernels + marks
    pieces = _kernels(events)
    assert [piece.asked for piece in pieces] == [*launch_times.values(), None]
    spans = _spans(events)
    assert [part_of(piece, spans, None) for piece in pieces] == [
        "attention", "loss", "loss", "attention", "elementwise", "attention", "optimizer", "elementwise", "elementwise",
    ]  # fmt: skip
