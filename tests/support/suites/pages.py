"""The Python that is printed in README.md and docs/: what is a file, and what is to be typed in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import millrace

ROOT = Path(millrace.__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [README, *sorted(DOCS.glob("*.md"))]
FILE_NAME = re.compile(r"# (\w+)\.py\n")  # the first line of a block that is a file


def blocks(page: Path) -> list[str]:
    """All of them, in order."""
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.S)


def typed_in(page: Path, places: Mapping[str, str]) -> list[str]:
    """Those that are no file, with `places` put in."""
    return [put_in(block, places) for block in blocks(page) if not FILE_NAME.match(block)]


def write_file(page: Path, name: str, directory: Path, places: Mapping[str, str]) -> None:
    """The block that begins with `# NAME.py`, as that file."""
    (block,) = [block for block in blocks(page) if block.startswith(f"# {name}.py\n")]
    (directory / f"{name}.py").write_text(put_in(block, places))


def put_in(block: str, places: Mapping[str, str]) -> str:
    """A test has other directories than the reader of a page, and less time. What is to be replaced must be there."""
    for printed, used in places.items():
        assert printed in block, f"{printed!r} is not in\n{block}"
        block = block.replace(printed, used)
    return block
