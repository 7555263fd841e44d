"""Decimals, dates and times as msgpack extensions. Without these, msgpack would turn them into text.

Only values of exactly these types are extended: an instance of a subclass would come back as one of its base class.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from msgspec.msgpack import Ext

# msgpack extension codes, apart from those of `packing`
DECIMAL, DATETIME, DATE, TIME, TIMEDELTA = 16, 17, 18, 19, 20


def _datetime_text(value: datetime) -> str:
    """ISO 8601 with the offset, if it has one, and the name of its zone after a blank."""
    key = value.tzinfo.key if isinstance(value.tzinfo, ZoneInfo) else None
    return f"{value.isoformat()} {key}" if key else value.isoformat()


def _datetime_of(text: str) -> datetime:
    stamp, _, key = text.partition(" ")
    value = datetime.fromisoformat(stamp)
    return value.astimezone(ZoneInfo(key)) if key else value


def _timedelta_of(text: str) -> timedelta:
    days, seconds, microseconds = map(int, text.split())
    return timedelta(days, seconds, microseconds)


_WRITERS: dict[type, tuple[int, Callable[[Any], str]]] = {
    Decimal: (DECIMAL, str),
    datetime: (DATETIME, _datetime_text),
    date: (DATE, date.isoformat),
    time: (TIME, time.isoformat),
    timedelta: (TIMEDELTA, lambda value: f"{value.days} {value.seconds} {value.microseconds}"),
}
_READERS: dict[int, Callable[[str], Any]] = {
    DECIMAL: Decimal, DATETIME: _datetime_of, DATE: date.fromisoformat, TIME: time.fromisoformat, TIMEDELTA: _timedelta_of}
EXTENDED = frozenset(_WRITERS)
EXTENSIONS = frozenset(_READERS)


def extension_of(value: Any) -> Ext:
    """The extension for a value of one of the `EXTENDED` types."""
    code, write = _WRITERS[type(value)]
    return Ext(code, write(value).encode())


def read_extension(code: int, data: memoryview) -> Any:
    """The value of an extension with one of the `EXTENSIONS` codes; ValueError if it is none."""
    text = str(data, "utf-8")
    try:
        return _READERS[code](text)
    except (ArithmeticError, LookupError, OSError, TypeError) as error:  # of Decimal, of a zone that is not installed
        raise ValueError(f"{text[:100]!r} cannot be read as extension {code}: {error}") from None
