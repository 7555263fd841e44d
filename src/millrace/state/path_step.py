"""Names that people choose, as one step of a path."""

from __future__ import annotations

import hashlib
from urllib.parse import quote

SAFE_LENGTH = 100  # of a quoted name: file systems take 255 bytes for each step of a path


def path_step(name: str) -> str:
    """Safe on any file system, and different for different names. One that would be too long ends with a digest instead.
    Letters, digits, `_`, `-` and `%` are all it has, and before a digest `~`."""
    quoted = quote(name, safe="", errors="surrogatepass").replace(".", "%2E").replace("~", "%7E")
    if len(quoted) <= SAFE_LENGTH:
        return quoted
    digest = hashlib.sha256(quoted.encode()).hexdigest()[:32]
    return f"{quoted[: SAFE_LENGTH - 33]}~{digest}"  # no quoted name has this sign
