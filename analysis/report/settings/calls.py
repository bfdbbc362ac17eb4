"""What was called, where runs time attention alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis.report.answer.ran import span
from analysis.report.settings.values import Of, Row, Setting, changed, plain, setting, value, whole
from model.record.config import RunConfig
from model.record.units import counted

_PART = "Attention"


def settings(runs: Sequence[Row]) -> Iterator[Setting]:
    """The calls, and how they were timed."""
    yield Setting("Shapes", _shapes(runs), changed(runs, ("call.shape",)), _PART)
    for topic, of, behind in _CALLS:
        yield Setting(topic, value(runs, of), changed(runs, behind), _PART)


def _shapes(runs: Sequence[Row]) -> str:
    """How many there are, and how far each of their sizes reaches."""
    cases = [RunConfig.model_validate(run["config"]).attention_case for run in runs]
    sizes = (
        f"{said} {span(getattr(case, column) for case in cases)}"
        for column, said in (
            ("batch", "batch"),
            ("sequence_length", "sequence length"),
            ("heads", "heads"),
            ("kv_heads", "key heads"),
            ("head_dim", "head dim"),
        )
    )
    return f"{counted(len({run['config']['call']['shape'] for run in runs}), 'shape')}: {', '.join(sizes)}"


def _mask(run: Row) -> str | None:
    found = setting("call", "causal")(run)
    return None if found is None else "causal" if found else "none"


def _backends(run: Row) -> str | None:
    found = setting("call", "backends")(run)
    return "all that are installed" if found == "all" else found


_CALLS: tuple[tuple[str, Of, tuple[str, ...]], ...] = (
    ("Mask", _mask, ("call.causal",)),
    ("Precision", plain(setting("call", "dtype")), ("call.dtype",)),
    ("Backends", _backends, ("call.backends",)),
    ("Rounds", whole(setting("call", "steps")), ("call.steps",)),
)
