"""The JSON Schema of `theta0 diagnose --json`, made of the results' own types and docstrings."""

import inspect
import json
import re
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from theta0._records import Record
from theta0.curvature.learning_rate import LearningRate
from theta0.diagnosis.results import Finding
from theta0.experiments.probe import Probe
from theta0.reports.document import SCHEMA

_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    NoneType: {"type": "null"},
}
_NUMBER = {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]}
_KEYS: dict[str, tuple[Any, str]] = {
    "schema": (int, "The version of this schema; it rises when a key changes its meaning or goes."),
    "theta0": (str, "The version of theta0."),
    "target": (str, "The script, file or module that was diagnosed."),
    "healthy": (bool, "Whether no finding has severity error, in what was measured."),
    "records": (tuple[Record, ...], "Every number measured, layers in execution order."),
    "findings": (tuple[Finding, ...], "What is wrong, ordered by cause."),
    "learning_rate": (LearningRate | None, "What the curvature allows, where a rate was given."),
    "probe": (Probe | None, "Whether short runs train; null where none were made."),
    "not_measured": (tuple[str, ...], "What could not be looked at and why, or was left undecided."),
    "cost_in_gradients": (float, "One forward and backward pass of this model on the mean batch is 1."),
}


def diagnosis_schema() -> dict[str, Any]:
    """The schema, as data; numbers that are not finite are the texts "nan", "inf" and "-inf".

    Returns:
        A JSON Schema of draft 2020-12.
    """
    definitions: dict[str, Any] = {}
    properties = {key: {**_schema_of(kind, definitions), "description": text} for key, (kind, text) in _KEYS.items()}
    properties["schema"] = {"const": SCHEMA, "description": _KEYS["schema"][1]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "theta0 diagnose --json",
        "type": "object",
        "properties": properties,
        "required": list(_KEYS),
        "additionalProperties": False,
        "$defs": definitions,
    }


def _schema_of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type; those of dataclasses go to the definitions."""
    if kind is float:
        return _NUMBER
    if kind in _PLAIN:
        return _PLAIN[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, UnionType):
        return {"anyOf": [_schema_of(part, definitions) for part in arguments]}
    if origin is tuple and arguments[-1] is Ellipsis:
        return {"type": "array", "items": _schema_of(arguments[0], definitions)}
    if origin is tuple:
        parts = [_schema_of(part, definitions) for part in arguments]
        return {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}
    if is_dataclass(kind) and isinstance(kind, type):
        if kind.__name__ not in definitions:
            definitions[kind.__name__] = {}  # so that a type within itself ends
            definitions[kind.__name__] = _object(kind, definitions)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    raise TypeError(f"no schema for {kind!r}")


def _object(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    hints, said = get_type_hints(kind), _attributes(kind)
    names = [field.name for field in fields(kind)]
    return {
        "type": "object",
        "properties": {n: {**_schema_of(hints[n], definitions), "description": said.get(n, "")} for n in names},
        "required": names,
        "additionalProperties": False,
    }


def _attributes(kind: type) -> dict[str, str]:
    """What a docstring says of its attributes."""
    section = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2]
    parts = re.split(r"^ {4}(\w+): ", section, flags=re.MULTILINE)[1:]
    return {name: " ".join(text.split()) for name, text in zip(parts[::2], parts[1::2], strict=True)}


if __name__ == "__main__":
    print(json.dumps(diagnosis_schema(), indent=1, ensure_ascii=False))
