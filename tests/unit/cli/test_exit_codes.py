"""Exit codes, by which service managers decide whether to restart."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.cli import main
from millrace.errors import MillraceError, NotTheAuthor


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("error", "code"), [
    (MillraceError("bad"), 1), (NotTheAuthor("overtaken"), 3), (KeyboardInterrupt(), 130)])
def test_an_overtaken_driver_has_its_own_exit_code(error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(prog_name: str) -> None:
        raise error

    monkeypatch.setattr(main, "app", fail)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == code


def test_an_interrupt_in_code_that_is_executed_as_text_has_the_same_code(tmp_path: Path) -> None:
    """Modules execute texts when they define dataclasses, and a command imports modules while the user may press Ctrl-C."""
    (tmp_path / "interrupted.py").write_text(
        "from millrace.cli import main\nmain.app = lambda **_: exec('raise KeyboardInterrupt')\nmain.main()\n")
    done = subprocess.run([sys.executable, "-m", "interrupted"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")
