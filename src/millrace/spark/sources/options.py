"""Options of Millrace's formats for `spark.read` and `spark.readStream`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from millrace.errors import MillraceError


def check_options(name: str, options: Iterable[str], known: Sequence[str]) -> None:
    """Refuse unknown options, which Spark would ignore. Spark itself adds only `path`, from `load(path)`."""
    for option in options:
        if option.lower() not in known:
            near = get_close_matches(option.lower(), known, 1)
            raise MillraceError(f"format(\"{name}\") has no option {option!r}" + (f"; did you mean {near[0]!r}" if near else "")
                                + f". It has {', '.join(known)}, and reads no path")
