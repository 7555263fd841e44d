"""Makes a test run independent of how it was started: signals, umask, locale, time zone, terminal.

Everything that a test starts inherits these settings.
"""

from __future__ import annotations

import os
import signal
import time

UMASK = 0o022
VARIABLES = {"LC_ALL": "C.UTF-8", "TZ": "UTC", "COLUMNS": "100", "LINES": "40"}
# With one of these, output is coloured or wrapped as in a terminal, messages are translated, all workers are on one node, or a
# pytest that a test starts prints more than it should.
REMOVED = ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "GITHUB_ACTIONS", "TERMINAL_WIDTH", "LANGUAGE",
           "MILLRACE_NODE", "PYTEST_ADDOPTS")


def normalize() -> None:
    """Call this on the main thread, before anything is started."""
    # A script's shell starts background commands with SIGINT and SIGQUIT ignored, nohup ignores SIGHUP; children inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    os.umask(UMASK)
    for name in REMOVED:
        os.environ.pop(name, None)
    os.environ.update(VARIABLES)
    time.tzset()
