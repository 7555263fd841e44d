"""Hides passwords in texts that people see: messages, events, errors, command lines.

Users write passwords into URLs (`redis://:password@host`, `?password=...`) and into Spark's settings. Everything that shows a
URL goes through this module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
# Scheme, user name if a password follows, then everything up to the last @: a password that was not percent-encoded may contain
# @ and /.
_USER = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*://)((?:[^\s'\"<>:@/]*:)?)[^\s'\"<>]*@")
_IN_QUERY = re.compile(r"(?i)([?&][^=&\s]*(?:password|passwd|secret|token)[^=&\s]*=)[^&\s'\"<>]*")
# The rule by which Spark itself hides settings, spark.redaction.regex, and passwords by their other name.
_SECRET_KEY = re.compile(r"(?i)secret|password|passwd|token|access[.]?key|credential")


def redact(text: str) -> str:
    """The text with *** in place of the passwords of its URLs, also those in queries."""
    if "://" not in text:
        return text
    return _IN_QUERY.sub(rf"\g<1>{HIDDEN}", _USER.sub(rf"\g<1>\g<2>{HIDDEN}@", text))


def shown_place(url: str) -> str:
    """The URL of a server or store for messages: without user, password and query. A path stays as it is."""
    return _USER.sub(r"\1", url).partition("?")[0] if "://" in url else url


def is_secret(key: str, value: str) -> bool:
    """True if a setting should be on no command line: its name says so, or its value is a URL with a password."""
    return _SECRET_KEY.search(key) is not None or redact(value) != value


def redacted(value: Any) -> Any:
    """A copy of plain values (dicts, lists, strings, ...) with all strings redacted."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {key: redacted(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(inner) for inner in value]
    return value
