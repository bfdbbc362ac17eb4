"""JSON Schemas of studies and profiles, for completion and validation in editors."""

from __future__ import annotations

from typing import Any, Literal

from model.record import backends
from model.record.config import RunConfig
from runner.inputs.profile import Profile
from runner.inputs.settings import leaves, sections
from runner.inputs.study import StudyFile

_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(kind: Literal["study", "profile", "mapping"]) -> dict[str, Any]:
    """Build a schema (draft 2020-12); a study's lists every setting, nested and dotted."""
    if kind == "profile":
        return {"$schema": _DRAFT, **Profile.model_json_schema()}
    if kind == "mapping":
        from analysis.importers import Mapping  # here, since importers compute with NumPy

        return {"$schema": _DRAFT, **Mapping.model_json_schema()}
    schema = StudyFile.model_json_schema()
    definitions = schema["$defs"]
    definitions |= RunConfig.model_json_schema()["$defs"]
    for section in sections().values():  # a study's part of a configuration may leave out any key
        definitions[section.__name__].pop("required", None)
    definitions["Assignment"] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {**_run_properties(), **_leaf_schemas(definitions)},
    }
    definitions["Axes"] = {
        "type": "object",
        "propertyNames": {"enum": list(leaves())},
        "properties": {
            dotted: {"type": "array", "items": item} for dotted, item in _leaf_schemas(definitions).items()
        },
    }
    for holder, name in ((schema, "base"), (definitions["Rule"], "set"), (definitions["Scale"], "set")):
        holder["properties"][name] |= {"$ref": "#/$defs/Assignment"}
    schema["properties"]["include"]["items"] = {"$ref": "#/$defs/Assignment"}
    for holder in (schema, definitions["Scale"]):
        holder["properties"]["matrix"] |= {"$ref": "#/$defs/Axes"}
        holder["properties"]["matrix"].pop("additionalProperties")
    return {"$schema": _DRAFT, **schema}


def _run_properties() -> dict[str, Any]:
    properties: dict[str, Any] = RunConfig.model_json_schema()["properties"]
    properties["attention"]["enum"] = list(backends.names())
    return properties


def _leaf_schemas(definitions: dict[str, Any]) -> dict[str, Any]:
    kinds = {name: kind.__name__ for name, kind in sections().items()}
    schemas: dict[str, Any] = {}
    for dotted in leaves():
        section, _, name = dotted.rpartition(".")
        properties = definitions[kinds[section]]["properties"] if section else _run_properties()
        schemas[dotted] = properties[name]
    return schemas
