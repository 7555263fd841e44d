"""Quotes user-chosen names as one step of a path."""

from __future__ import annotations

import hashlib
from urllib.parse import quote

SAFE_LENGTH = 100  # of a quoted name: file systems allow 255 bytes for each step of a path


def path_step(name: str) -> str:
    """Quotes a name: safe on any file system, and different for different names. A name that is too long ends with a digest.
    Consists of letters, digits, `_`, `-` and `%`, and `~` before a digest."""
    quoted = quote(name, safe="", errors="surrogatepass").replace(".", "%2E").replace("~", "%7E")
    if len(quoted) <= SAFE_LENGTH:
        return quoted
    digest = hashlib.sha256(quoted.encode()).hexdigest()[:32]
    return f"{quoted[: SAFE_LENGTH - 33]}~{digest}"  # no quoted name contains ~
