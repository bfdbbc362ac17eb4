"""Which Vega-Lite draws."""

from __future__ import annotations


def vega_version() -> str:
    """The Vega-Lite that Altair writes for, or the newest that the bundle has."""
    import altair
    import vl_convert

    wanted = altair.SCHEMA_VERSION.removeprefix("v").rpartition(".")[0]
    known: list[str] = vl_convert.get_vegalite_versions()
    return wanted if wanted in known else known[-1]
