"""Options that several verbs share."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from millrace.errors import MillraceError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object at the end and nothing else on stdout.")]
ClusterName = Annotated[str | None, typer.Option("--cluster", metavar="NAME",
                                                 help="Name of the cluster; needed only if several run.")]
TopologyName = Annotated[str, typer.Argument(metavar="TOPOLOGY", help="Its name, as `millrace status` shows it.")]
Pairs = list[str] | None
OneTopology = Annotated[str | None, typer.Argument(metavar="TOPOLOGY", help="Its name; all of them if not given.")]


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


def going_on(resume: bool, fresh: bool) -> bool | None:
    """What --resume and --fresh say of an earlier run; None: nothing."""
    if resume and fresh:
        raise MillraceError("--resume and --fresh: one goes on from what an earlier run has left, the other deletes it. Give "
                            "the one that you mean")
    return resume if resume or fresh else None


def json_or_text(given: str) -> Any:
    try:
        return json.loads(given)
    except (ValueError, RecursionError):
        return given
