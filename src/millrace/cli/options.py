"""Options that several verbs share."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from millrace.errors import MillraceError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object at the end and nothing else on stdout.")]
ClusterName = Annotated[str | None, typer.Option("--cluster", help="Name of the cluster; needed only if several run.")]


def pairs(option: str, given: list[str] | None, whole: bool = False, raw: bool = False) -> dict[str, Any]:
    """KEY=VALUE options as a dict; values are JSON where they parse as such, else text."""
    found: dict[str, Any] = {}
    for item in given or []:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise MillraceError(f"{option} {item!r} is not of the form KEY=VALUE")
        found[key] = value if raw else json_or_text(value)
        if type(found[key]) is int and found[key].bit_length() > 63:
            raise MillraceError(f"{option} {item!r}: the number is too large")
        if whole and type(found[key]) is not int:  # `true` is an int for isinstance
            raise MillraceError(f"{option} {item!r}: the value must be a whole number")
    return found


def json_or_text(given: str) -> Any:
    try:
        return json.loads(given)
    except (ValueError, RecursionError):
        return given
