"""Options that several commands share, and the parsing of KEY=VALUE."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from millrace.config import ENGINE_SETTINGS, OTHER_KEYS, SETTINGS, TOPOLOGY_SETTINGS
from millrace.control.submission import AUTO, OLDER, Resume
from millrace.errors import MillraceError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object at the end and nothing else on stdout.")]
ClusterName = Annotated[str | None, typer.Option("--cluster", metavar="NAME",
                                                 help="Name of the cluster; needed only if several are running.")]
TopologyName = Annotated[str, typer.Argument(metavar="TOPOLOGY", help="Name of the topology, as `millrace status` shows it.")]
Pairs = list[str] | None
OneTopology = Annotated[str | None, typer.Argument(metavar="TOPOLOGY", help="Name of the topology; default: all.")]

RESUME, RESUME_AUTO, RESUME_OLDER = "--resume", "--resume-auto", "--resume-older"
RESUME_VALUES = {AUTO: RESUME_AUTO, OLDER: RESUME_OLDER}
SPARK = "spark."  # begins the names of Spark's own settings
FROM_ENVIRONMENT, FROM_FILE = "env:", "@"  # begin values that are kept in the environment or in a file


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one command line, sorted by the part of the system that reads them."""

    # Not in the repr: URLs in it may have passwords.
    topology: dict[str, Any] = field(default_factory=dict, repr=False)  # including the users' own keys, which components read
    engine: dict[str, Any] = field(default_factory=dict, repr=False)
    spark: dict[str, str] = field(default_factory=dict, repr=False)


def sorted_settings(items: list[str] | None) -> Settings:
    """Sort `--set KEY=VALUE` options by their key. Misspelt settings are refused; other unknown keys are the users' own."""
    settings = Settings()
    for key, text in _split("--set", items):
        if key.startswith(SPARK):
            settings.spark[key] = text if (secret := _kept_elsewhere(key, text)) is None else secret  # Spark parses its values
        elif key in ENGINE_SETTINGS:
            settings.engine[key] = _setting(key, text)
        else:
            _check_spelling(key)
            settings.topology[key] = _setting(key, text)
    return settings


def _setting(key: str, text: str) -> Any:
    secret = _kept_elsewhere(key, text)
    return _value("--set", key, text) if secret is None else secret


def _kept_elsewhere(key: str, text: str) -> str | None:
    """The value that `env:NAME` or `@FILE` stands for; None if the text is the value itself.

    Command lines are in the process list, which every user of the host can read. The value is a string, even if it looks like
    a number, without the end of its line. A value in JSON quotes means itself.
    """
    if text.startswith(FROM_ENVIRONMENT):
        name = text.removeprefix(FROM_ENVIRONMENT)
        if name not in os.environ:
            raise MillraceError(f"--set {key}={text}: there is no environment variable {name!r}. Export it first")
        return os.environ[name]
    if text.startswith(FROM_FILE):
        path = Path(text.removeprefix(FROM_FILE)).expanduser()
        try:
            return path.read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise MillraceError(f"--set {key}={text}: the value should be in the file {path}, which cannot be read: "
                                f"{reason}") from None
    return None


def _check_spelling(key: str) -> None:
    known = [*(setting.key for setting in SETTINGS), *OTHER_KEYS]
    if key in TOPOLOGY_SETTINGS or key in OTHER_KEYS:
        return
    near = get_close_matches(key, known, 1, cutoff=0.8)
    families = tuple({setting.partition(".")[0] + "." for setting in known})
    if near or key.startswith(families):
        meant = f"; did you mean {near[0]}" if near else ""
        raise MillraceError(f"--set {key}: there is no such setting{meant}. docs/settings.md lists all of them")


def pairs(option: str, items: list[str] | None, whole: bool = False) -> dict[str, Any]:
    """KEY=VALUE options as a dict. A value that parses as JSON is read as JSON, any other as a string."""
    values: dict[str, Any] = {}
    for key, text in _split(option, items):
        values[key] = _value(option, key, text)
        if whole and type(values[key]) is not int:  # `true` is an int for isinstance
            raise MillraceError(f"{option} {f'{key}={text}'!r}: the value must be a whole number")
    return values


def whole_range(option: str, text: str) -> tuple[int, int]:
    """The two numbers of N-M; of N alone, that one twice."""
    first, dash, last = text.partition("-")
    if not first.isdecimal() or not (last.isdecimal() or not dash) or not 1 <= int(first) <= int(last or first):
        raise MillraceError(f"{option} {text!r} is neither a number, as in 8, nor a range, as in 4-12")
    return int(first), int(last or first)


def group_owners(items: list[str]) -> dict[int, int]:
    """GROUP=TASK and FIRST-LAST=TASK as a dict of key groups and the index of their task."""
    owners: dict[int, int] = {}
    for item in items:
        ((groups, task),) = pairs("regroup", [item], whole=True).items()
        for group in _key_groups(item, groups):
            if owners.setdefault(group, task) != task:
                raise MillraceError(f"regroup {item!r}: key group {group} is already given to task {owners[group]}, and it can "
                                    "have only one owner. Name it once")
    return owners


def _key_groups(item: str, groups: str) -> range:
    """The key groups that GROUP or FIRST-LAST stands for."""
    first, dash, last = groups.partition("-")
    numbers = [int(text) for text in (first, last if dash else first) if text.isdecimal() and len(text) < 6]
    if len(numbers) < 2 or numbers[0] > numbers[1]:
        raise MillraceError(f"regroup {item!r}: {groups!r} is neither a key group, as in 12=1, nor a range, as in 0-7=1")
    return range(numbers[0], numbers[1] + 1)


def _split(option: str, items: list[str] | None) -> list[tuple[str, str]]:
    split = []
    for item in items or []:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise MillraceError(f"{option} {item!r} is not of the form KEY=VALUE")
        split.append((key, value))
    return split


def _value(option: str, key: str, text: str) -> Any:
    value = json_or_text(text)
    if type(value) is int and value.bit_length() > 63:
        raise MillraceError(f"{option} {f'{key}={text}'!r}: the number is too large")
    return value


class RunCommand(TyperCommand):
    """The command `run`, which understands `--resume auto` and `--resume older`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_resume_value(args))


def with_resume_value(arguments: list[str]) -> list[str]:
    """The arguments with --resume and its value as one option: an option of Typer has a value always or never."""
    joined: list[str] = []
    for argument in arguments:
        if argument in RESUME_VALUES and joined[-1:] == [RESUME]:
            joined[-1] = RESUME_VALUES[argument]
        else:
            option, _, value = argument.partition("=")
            joined.append(RESUME_VALUES.get(value, argument) if option == RESUME else argument)
    return joined


def resume_choice(resume: bool, auto: bool, older: bool, fresh: bool) -> Resume:
    """The choice that --resume, --resume auto, --resume older and --fresh make; None for none of them."""
    if auto and older:
        raise MillraceError("--resume auto and --resume older: give only one of the two")
    if (resume or auto or older) and fresh:
        raise MillraceError("--resume continues from the checkpoints of an earlier run, --fresh starts empty: give only one of "
                            "the two")
    if auto or older:
        return AUTO if auto else OLDER
    return resume if resume or fresh else None


def json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
