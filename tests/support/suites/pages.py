"""The Python code in README.md and docs/: blocks that are files, and blocks to be typed in."""

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
    """All Python blocks of a page, in order."""
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.S)


def typed_in(page: Path, places: Mapping[str, str]) -> list[str]:
    """The blocks that are not files, with `places` replaced."""
    return [put_in(block, places) for block in blocks(page) if not FILE_NAME.match(block)]


def write_file(page: Path, name: str, directory: Path, places: Mapping[str, str]) -> None:
    """Write the block that begins with `# NAME.py` to that file."""
    (block,) = [block for block in blocks(page) if block.startswith(f"# {name}.py\n")]
    (directory / f"{name}.py").write_text(put_in(block, places))


def put_in(block: str, places: Mapping[str, str]) -> str:
    """Replace directories and durations of the page by those of a test; each must occur in the block."""
    for printed, used in places.items():
        assert printed in block, f"{printed!r} is not in\n{block}"
        block = block.replace(printed, used)
    return block
