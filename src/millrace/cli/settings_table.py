"""docs/settings.md, made from the settings and parameters themselves."""

from __future__ import annotations

from typing import Any

from millrace.config import SETTINGS
from millrace.control.load_smoothing import ESTIMATORS, estimator_class
from millrace.control.schedule_generator import Policy
from millrace.schedulers.parameters import described
from millrace.schedulers.registry import SCHEDULERS, scheduler_class


def settings_page() -> str:
    """The page as it must be; a test compares."""
    rows = ["# Settings", "", "Made from the code by `python -m millrace.cli.settings_table > docs/settings.md`.", "",
            "| key | default | meaning |", "| --- | --- | --- |"]
    rows += [f"| `{setting.key}` | {'unset' if setting.default is None else setting.default} | {setting.about} |"
             for setting in SETTINGS]
    rows += ["", "## How a scheduler is used", "", "Options of `millrace scheduler set`, the same for every scheduler.", ""]
    rows += _table([("", Policy)])
    rows += ["", "## Schedulers", "", *_table([(name, scheduler_class(name)) for name in SCHEDULERS])]
    rows += ["", "## Estimators", "", *_table([(name, estimator_class(name)) for name in ESTIMATORS])]
    return "\n".join(rows) + "\n"


def _table(classes: list[tuple[str, type[Any]]]) -> list[str]:
    rows = ["| of | parameter | default | meaning |", "| --- | --- | --- | --- |"]
    for name, cls in classes:
        parameters = described(cls)
        rows += [f"| {f'`{name}`' if name else ''} | `{key}` | {'unset' if default is None else default} | {about} |"
                 for key, default, about in parameters]
        if not parameters:
            rows.append(f"| `{name}` | | | has none |")
    return rows


if __name__ == "__main__":
    print(settings_page(), end="")
