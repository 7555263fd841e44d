"""Exit codes, by which service managers decide whether to restart."""

from __future__ import annotations

import signal
from collections.abc import Iterator

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
