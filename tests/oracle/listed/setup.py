"""Kinds of the setup, setting by setting, and of the table of backends."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from tests.oracle import kinds
from tests.oracle.kinds import NONE, listed, span
from tests.oracle.listed.certificates import verdict_of
from tests.oracle.listed.facts import load, order_of
from tests.oracle.listed.overview import last_step
from tests.oracle.listing import Cell, column
from tests.oracle.truth import (
    Run,
    Study,
)


def alike(study: Study, value: Callable[[Run], object]) -> str:
    """A value of all groups, or each value with the groups that have it."""
    by_group: dict[str, list[str]] = {}
    for label, runs in study.groups.items():
        for run in runs:
            by_group.setdefault(label, [])
            if (text := value(run)) is not None and f"{text}" not in by_group[label]:
                by_group[label].append(f"{text}")
    if any(len(texts) > 1 for texts in by_group.values()):
        counts = Counter(f"{value(run)}" for run in study.runs)
        return "; ".join(f"{text} ({count} runs)" for text, count in counts.most_common())
    return with_groups({label: texts[0] for label, texts in by_group.items() if texts})


def with_groups(values: dict[str, str]) -> str:
    """`4 (replicate=1); 8 (replicate=2)`."""
    groups: dict[str, list[str]] = {}
    for label, text in values.items():
        groups.setdefault(text, []).append(label)
    if len(groups) == 1:
        return next(iter(groups))

    def names(labels: list[str]) -> str:
        return (
            listed(labels)
            if len(labels) <= 4
            else f"{', '.join(labels[:3])} and {len(labels) - 3} more groups"
        )

    return "; ".join(f"{text} ({names(labels)})" for text, labels in groups.items())


Setting = Callable[[Study], str]


def _model(name: str) -> Setting:
    return lambda study: alike(study, lambda run: run.config["model"][name])


def _train(name: str) -> Setting:
    return lambda study: alike(study, lambda run: run.config["train"][name])


def heads_of(study: Study) -> str:
    """Of queries and of keys, and their dimension."""
    return alike(
        study,
        lambda run: (
            f"{run.config['model']['heads']} query heads and {run.config['model']['kv_heads']} key/value heads, each of "
            f"dimension {run.config['model']['dim'] // run.config['model']['heads']}"
        ),
    )


def parameters_of(study: Study) -> str:
    """All, and those that count in 6 N."""
    return alike(
        study,
        lambda run: (
            f"{run.parameters}, of which {run.parameters - run.config['model']['vocab_size'] * run.config['model']['dim']} "
            "are not the input embedding"
        ),
    )


def flop_of(study: Study) -> str:
    """Per token."""
    scope = "forward only, of a prompt" if study.task == "inference" else "forward and backward"
    return alike(study, lambda run: f"{run.flop / 1e9} GFLOP, {scope}")


def learning_rate_of(study: Study) -> str:
    """Of the configuration, or the highest that a log has."""
    if study.imported:
        return f"{max(record['learning_rate'] for run in study.runs for _, record in run.steps)} at the highest, by the records"
    return _train("learning_rate")(study)


def steps_of(study: Study) -> str:
    """How many of the planned ones."""
    if study.imported and "steps" not in study.runs[0].config["train"]:
        return f"{study.runs[0].steps[-1][1]['step']} of an unknown number"
    if not any(run.attempts for run in study.runs):
        return f"{NONE} of {study.runs[0].config['train']['steps']} planned"
    return alike(
        study,
        lambda run: f"{last_step(run)} of {run.config['train']['steps']} planned" if run.attempts else None,
    )


def repeats_of(study: Study) -> str:
    """Runs of each group and seed."""
    counts = {
        label: max(Counter(run.key[0] for run in runs).values()) for label, runs in study.groups.items()
    }
    unit = "of each group" if study.imported else "of each group and seed"
    if len(set(counts.values())) == 1:
        count = next(iter(counts.values()))
        return f"{count} run{'s' if count > 1 else ''} {unit}"
    ordered = dict(sorted(counts.items(), key=lambda item: item[1]))
    return f"runs {unit}: {with_groups({label: f'{count}' for label, count in ordered.items()})}"


def margins_of(study: Study) -> str:
    """As the study states them."""
    margins, parts = study.design["margins"] if not study.imported else {"loss": 0.02}, []
    if "loss" in margins:
        parts.append(f"loss {margins['loss']} nats per token")
    if "tokens_per_second" in margins:
        parts.append(f"tokens per second {100 * margins['tokens_per_second']} %")
    return ", ".join(parts) + (", stated at the import" if study.imported else "")


def added_of(study: Study) -> str:
    """Runs that were planned after the first result."""
    first = min(run.ended for run in study.runs if run.attempts)
    added = sum(run.plan["created_at"] > first for run in study.runs)
    blocks = {run.plan.get("block") for run in study.runs}
    waiting = {run.plan.get("block") for run in study.runs if run.outcome is None}
    if not added and waiting:
        progress = f"blocks that have ended so far: {len(blocks - waiting)} of {len(blocks)}"
        return f"none: the number of runs was fixed in advance; {progress}"
    runs = f"{added} run{'s' if added != 1 else ''}"
    return f"none, and the number of runs was not fixed in advance: {runs} added after the first result"


def packages_of(study: Study) -> str:
    """Of all runs, in the order in which these have them."""
    of_runs = [run.measured.manifest.get("software") or {} for run in study.runs if run.attempts]
    versions = {name: version for software in of_runs for name, version in software.items()}
    return ", ".join(f"{name} {version}" for name, version in versions.items() if name != "driver")


def beside_of(study: Study) -> str:
    """The most attempts at one time on a machine."""
    ends = [
        (attempt.manifest["started_at"], attempt.result["ended_at"])
        for run in study.runs
        for attempt in run.attempts
    ]
    return f"up to {max(sum(start <= moment < end for start, end in ends) for moment, _ in ends)} at a time on one machine"


def peak_of_setup(study: Study) -> str:
    """With its source."""
    manifest = study.done[0].measured.manifest if study.done else study.runs[0].measured.manifest
    source = manifest["peak_source"]
    return f"{manifest['peak_flops'] / 1e12} TFLOP/s per GPU ({source})"


def shapes_of(study: Study) -> str:
    """Batch, length, heads and dimension of the calls."""
    shapes = {run.config["call"]["shape"] for run in study.runs}
    sizes = [span(sorted(sizes)) for sizes in zip(*(run.sizes for run in study.runs), strict=True)]
    batch, length, heads, dim = sizes
    count = f"{len(shapes)} shape{'s' * (len(shapes) > 1)}"
    return (
        f"{count}: batch {batch}, sequence length {length}, heads {heads}, key heads {heads}, head dim {dim}"
    )


def varied_of(study: Study) -> str:
    """The factors, how many groups they make, and what a launch selected."""
    factors = listed(
        sorted(
            name for name in study.runs[0].plan["factors"] if name not in ("seed", *study.runs[0].constant)
        )
    )
    only = " ".join(study.runs[0].plan.get("provenance", {"command": []})["command"][2:])
    return f"{factors}: {len(study.groups)} groups" + (f" {only}" if only else "")


def _call(name: str, default: object, words: dict[object, str] | None = None) -> Setting:
    def value_text(run: Run) -> object:
        value = run.config["call"].get(name, default)
        return words[value] if words else f"{value:g}" if isinstance(value, float) else value

    return lambda study: alike(study, value_text)


def decoded_of(study: Study) -> str:
    """How many tokens."""
    return alike(
        study,
        lambda run: (
            f"{run.config['inference']['new_tokens']} tokens, greedily, with a KV cache"
            if run.config["inference"]["new_tokens"]
            else "nothing"
        ),
    )


def clocks_of(study: Study) -> str:
    """As the drivers said before the runs."""
    clocks = study.runs[0].measured.manifest["clocks"]
    return (
        f"power limit {clocks['power_limit_watts']} W, GPU clock {clocks['sm_mhz']} MHz, memory clock "
        f"{clocks['memory_mhz']} MHz"
    )


def throttling_of(study: Study) -> str:
    """Share of the wall time in which the power limit held the clocks back."""
    (run,) = study.runs
    result = run.measured.result
    capped_before = run.measured.manifest["clocks"]["power_capped_seconds"]
    share = 100 * (result["clocks"]["power_capped_seconds"] - capped_before) / result["wall_seconds"]
    return f"by the power limit for {share} % of the wall time, start-up included, by heat or the power supply at no time"


def of_inference(name: str) -> Setting:
    return lambda study: alike(study, lambda run: run.config["inference"][name])


def of_manifest(value: Callable[[Run], object]) -> Setting:
    return lambda study: with_groups(
        {
            label: f"{value(runs[0])}"
            for label, runs in study.groups.items()
            if runs[0].attempts and runs[0].measured.manifest
        }
    )


def devices_of(study: Study) -> str:
    """The only kind, or each with its groups."""
    kind, *others = kinds.devices([run for run in study.runs if run.attempts and run.measured.manifest])
    return of_manifest(lambda run: kinds.devices([run])[0])(study) if others else kind


def hosts_of(study: Study) -> str:
    """Of all runs that started, or each with its groups or its number of runs."""
    started = [run for run in study.runs if run.attempts and run.measured.manifest]
    return alike(study, lambda run: run.measured.manifest["host"] if run in started else None)


def batch_of(run: Run) -> int:
    """Samples of a step, one by default."""
    return int(run.config.get("inference", run.config.get("train", {})).get("batch_size", 1))


def length_of(run: Run) -> int | str:
    """Tokens of a sample; the most of those that a search may try."""
    if "frontier" in run.config:
        return f"up to {run.config['frontier']['sequence_length']}"
    settings = run.config.get("inference")
    return int(settings["prompt_length"] if settings else run.config["train"]["sequence_length"])


def memory_of(study: Study) -> str:
    """The share that probes may use."""
    return alike(
        study,
        lambda run: (
            "all"
            if run.config["frontier"]["memory_fraction"] == 1
            else f"{100 * run.config['frontier']['memory_fraction']} %, which emulates a smaller card"
        ),
    )


def blocks_of(study: Study) -> str:
    """Where and when each block ran, and what it lacks; neighbours that are alike are one entry."""
    entries: list[tuple[str, list[int]]] = []
    for block in sorted({run.plan["block"] for run in study.runs}):
        runs = [run for run in study.runs if run.plan["block"] == block]
        manifests = [run.measured.manifest for run in runs if run.attempts]
        hosts = sorted({manifest["host"] for manifest in manifests})
        gpus = sorted({manifest["gpu_uuid"][4:12] for manifest in manifests if manifest.get("gpu_uuid")})
        days = sorted({manifest["started_at"][:10] for manifest in manifests})
        missing = [run.label for run in runs if run.outcome is None]
        gpus += ["others"] * (bool(gpus) and any(run.attempts and run.gpus > 1 for run in runs))
        text = f"on {listed(hosts)}, " + f"GPU{'s' * (len(gpus) > 1)} {listed(gpus)}, " * bool(gpus)
        text += " to ".join(days[:: max(1, len(days) - 1)]) + f", without {listed(missing)}" * bool(missing)
        if entries and entries[-1][0] == text:
            entries[-1][1].append(block)
        else:
            entries.append((text, [block]))
    return "; ".join(
        f"{f'{blocks[0]} to {blocks[-1]}' if len(blocks) > 2 else listed([*map(str, blocks)])}: {text}"
        for text, blocks in entries
    )


SETTINGS: dict[str, Setting] = {
    "Parameters": parameters_of, "Layers": _model("layers"), "Dimension": _model("dim"), "Attention heads": heads_of,
    "Feed-forward dimension": _model("ffn_dim"), "Vocabulary": _model("vocab_size"), "FLOP per token": flop_of,
    "Sequence length": lambda study: alike(study, length_of), "Prompt length": lambda study: alike(study, length_of),
    "Batch": lambda study: alike(study, batch_of),
    "Tokens per step": lambda study: alike(study, lambda run: batch_of(run) * int(length_of(run))),
    "Precision": lambda study: _call("dtype", "bfloat16")(study) if study.task == "attention" else "bfloat16", "Loss": lambda study: "cross-entropy of the logits in float32",
    "Optimizer": lambda study: "AdamW, weight decay 0.01, gradients clipped to norm 1",  # of the defaults
    "Learning rate": learning_rate_of,
    "Learning-rate warm-up": lambda study: (
        f"linear over the first {study.runs[0].config['train']['warmup_steps']} of {study.runs[0].config['train']['steps']} "
        "steps, then constant"),
    "Steps": steps_of, "Padding": lambda study: "0.0 % of the tokens, which tokens per second include",
    "Varied": varied_of, "Repeats": repeats_of, "Margins": margins_of, "Stopping rule": added_of,
    "Seeds": lambda study: listed([f"{seed}" for seed in dict.fromkeys(run.key[0] for run in study.runs)]),
    "Order of the runs": order_of, "Blocks": blocks_of, "Runs side by side": beside_of, "Load": load, "Peak for MFU": peak_of_setup,
    "Device": devices_of, "Host": hosts_of,
    "Driver": lambda study: "570.86", "Packages": packages_of,
    "Commit": lambda study: str(study.runs[0].plan["provenance"]["git_sha"])[:10],
    "Shapes": shapes_of, "Rounds": lambda study: f"{study.runs[0].config['call']['steps']}",
    "Prefills": of_inference("steps"), "Prefills of warm-up": of_inference("warmup_steps"),
    "Mask": _call("causal", True, {True: "causal", False: "none"}), "Dropout": _call("dropout", 0.0),
    "Tiles, queries x keys": _call("tile", "each backend's own"),
    "Memory": memory_of, "In multiples of": lambda study: alike(study, lambda run: run.config["frontier"]["multiple"]),
    "Parts of a batch": lambda study: "1", "Seconds per probe": lambda study: "300",  # of the defaults
    "Decoded after the last prompts": decoded_of, "Clocks and power": clocks_of, "Clock throttling": throttling_of,
}  # fmt: skip


@column(r"What was run.*", "Value")
def setting(cell: Cell) -> str:
    study, name = (
        cell.spot.study,
        {"Batch": "train.batch_size", "Steps": "train.steps"}.get(cell.row["Setting"]),
    )
    changes = [run.plan["overridden"][name] for run in study.runs if name in run.plan.get("overridden", {})]
    marks = dict.fromkeys(f" {change['by']}; the study says {change['own']}" for change in changes)
    return SETTINGS[cell.row["Setting"]](study) + "".join(marks)


@column(r"What each attention backend is.*", "Package", "Runs", "Verdict", "What it is")
def backend_cells(cell: Cell) -> str:
    study, label = cell.spot.study, cell.first
    runs = [
        run
        for run in study.runs
        if label in {run.config.get("attention"), *(row["attention"] for row in run.kernels)}
        and (run.attempts or cell.head == "Runs")
    ]
    completed = sum(run.done for run in runs)
    verdicts = Counter(verdict_of(study, run, label) for run in runs if run.attempts)
    uncertified = verdicts.pop("none", 0)
    return {
        "Package": "torch 2.13.0",
        "Runs": f"{completed} of {len(runs)}" if completed < len(runs) else f"{completed}",
        "Verdict": "; ".join(
            [
                *verdicts,
                *([f"{uncertified} run{'s' if uncertified > 1 else ''} without"] if uncertified else []),
            ]
        ),
        "What it is": re.sub(r"(?<!FlashAttention)-\d", "", cell.row["What it is"]),  # names alone
    }[cell.head]
