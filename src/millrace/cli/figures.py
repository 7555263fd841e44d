"""Figures for people: three digits and a unit. The JSON has the exact values."""

from __future__ import annotations

PLAIN = 10_000  # smaller numbers are shown in full
LETTERS = ("", "k", "M", "G", "T", "P", "E")
UNKNOWN = "-"


def count(value: float | None) -> str:
    """Format a count: 1,234 in full, larger ones as 12.3 k or 4.56 M."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if round(value) < PLAIN else _scaled(value, LETTERS)


def size(value: float) -> str:
    """Format bytes: 759 B, 55.7 kB, 4.2 MB."""
    return _scaled(value, tuple(f"{letter}B" for letter in LETTERS))


def megabytes(value: float) -> str:
    return size(value * 1e6)


def share(value: float | None) -> str:
    """Format 0.042 as 4%."""
    return UNKNOWN if value is None else f"{value:.0%}"


def milliseconds(value: float) -> str:
    """Format with two digits, enough to tell a fast bolt from a slow one."""
    return f"{value:,.0f}" if value >= 10 else f"{float(f'{value:.2g}'):.6g}"


def named_percentiles(value: dict[str, float] | None, *names: str) -> str:
    """Format the percentiles that are named, as 0.5/12."""
    return UNKNOWN if value is None else "/".join(milliseconds(value[name]) for name in names)


def p50_and_p99(value: dict[str, float] | None) -> str:
    return named_percentiles(value, "p50", "p99")


def duration(seconds: float) -> str:
    """Format with the two largest units: 42 s, 3 min 20 s, 5 h 12 min, 2 d 4 h."""
    whole = int(seconds)
    for unit, length, lesser, part in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= length:
            return f"{whole // length} {unit} {whole % length // part} {lesser}"
    return f"{whole} s"


def number_of(value: float, singular: str, plural: str = "") -> str:
    """Format a count with its noun: 1 task, 2 tasks, 12.3 k tasks."""
    return f"{count(value)} {singular if value == 1 else plural or singular + 's'}"


def _scaled(value: float, units: tuple[str, ...]) -> str:
    for unit in units[:-1]:
        if float(f"{value:.3g}") < 1000:
            return f"{_three_digits(value)} {unit}".rstrip()
        value /= 1000
    return f"{value:,.0f} {units[-1]}"


def _three_digits(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
