"""docs/settings.md, made from the settings themselves."""

from __future__ import annotations

from millrace.config import SETTINGS


def settings_page() -> str:
    """The page as it must be; a test compares."""
    rows = ["# Settings", "", "Made from `millrace.config` by `python -m millrace.cli.settings_table > docs/settings.md`.", "",
            "| key | default | meaning |", "| --- | --- | --- |"]
    rows += [f"| `{setting.key}` | {'unset' if setting.default is None else setting.default} | {setting.about} |"
             for setting in SETTINGS]
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(settings_page(), end="")
