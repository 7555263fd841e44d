"""The picture of `demo --svg`; the demo itself is run by tests/spark/test_cli.py."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from rich.console import Console

from millrace.cli.demo import Screen
from millrace.errors import MillraceError


def terminal() -> Console:
    return Console(file=io.StringIO(), width=80)


def test_the_picture_has_the_lines_of_the_terminal(tmp_path: Path) -> None:
    path, console = tmp_path / "demo.svg", terminal()
    screen = Screen(console, str(path))
    screen.print("[bold red]kill -9 4137[/]: worker 2")
    screen.keep("only in the picture")
    screen.save()
    text = "".join(ET.fromstring(path.read_text()).itertext()).replace("\xa0", " ")
    assert "kill -9 4137" in text and "only in the picture" in text and "./millrace demo" in text
    assert "url(" not in path.read_text().replace("url(#", ""), "nothing is fetched from elsewhere"
    assert isinstance(console.file, io.StringIO)
    printed = console.file.getvalue()
    assert printed.startswith("kill -9 4137: worker 2\nsaved to ") and "only in the picture" not in printed


def test_without_a_file_there_is_no_picture(tmp_path: Path) -> None:
    screen = Screen(terminal(), None)
    screen.print("hello")
    screen.save()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing" / "demo.svg"):
        with pytest.raises(MillraceError, match=r"--svg .*cannot write there"):
            Screen(terminal(), str(path))
