"""Tables that fit the terminal."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from millrace.cli.listing import (
    GAP,
    LONGEST_EVENT,
    Column,
    Hanging,
    Listing,
    broken,
    ranges,
    short_hosts,
    shortened,
    task_names,
)


def printed(shown: RenderableType, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(shown)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def listing(name: str = "count") -> Listing:
    return Listing("words", Column("component", [name, "b"], figures=False), Column("tasks", ["2", "10"]),
                   Column("execute\nms", ["0.01/2", "-"], spare=True), Column("queue", ["0", "7"], spare=True))


def test_figures_are_aligned_right() -> None:
    assert printed(listing(), 80) == ["words",
                                      "                  execute",
                                      "component  tasks       ms  queue",
                                      "count          2   0.01/2      0",
                                      "b             10        -      7"]


def test_spare_columns_are_dropped_from_the_right() -> None:
    full = 32
    assert "queue" in printed(listing(), full)[2]
    assert "queue" not in printed(listing(), full - 1)[2] and "ms" in printed(listing(), full - 1)[2]
    assert printed(listing(), 24)[1:] == ["component  tasks", "count          2", "b             10"]


def test_a_spare_column_is_never_shown_without_those_before_it() -> None:
    table = Listing("", Column("a", ["x"], figures=False), Column("wide", ["w" * 50], spare=True),
                    Column("b", ["1"], spare=True))
    assert [column.title for column in table.fitting(20)] == ["a"]


def test_a_long_name_is_broken_before_a_column_is_dropped() -> None:
    name = "a-component-with-a-very-long-name"
    lines = printed(listing(name), 20 + 3 * GAP + 5 + 7 + 5)
    assert "queue" in lines[2]
    assert [line[:20].strip() for line in lines[3:-1]] == ["a-component-with-a-", "very-long-name"]
    assert name in printed(listing(name), 80)[3]


@pytest.mark.parametrize(("name", "lines"), [
    ("", [""]), ("short", ["short"]), ("two-words", ["two-", "words"]), ("no_more.than-so", ["no_", "more.", "than-so"]),
    ("unbreakable", ["unbreakable"]), ("a-unbreakable-b", ["a-", "unbreakable-", "b"]),
])
def test_names_are_broken_between_words(name: str, lines: list[str]) -> None:
    assert broken(name, 7) == "\n".join(lines)


@pytest.mark.parametrize(("hosts", "shown"), [
    (["a.x.org", "b.x.org", "a.x.org"], ["a", "b", "a"]), (["a.x.org", "a.y.org"], ["a.x.org", "a.y.org"]),
    (["10.0.0.1", "11.0.0.2"], ["10.0.0.1", "11.0.0.2"]), (["vm"], ["vm"]), ([], []),
])
def test_hosts_are_shortened_if_that_is_unique(hosts: list[str], shown: list[str]) -> None:
    names = short_hosts(hosts)
    assert [names[host] for host in hosts] == shown


def test_markup_is_shown_literally() -> None:
    assert printed(Listing("[/bold]", Column("task", ["count[0]", "[red]x"], figures=False)), 80) == [
        "[/bold]", "task", "count[0]", "[red]x"]


def test_continuation_lines_are_indented() -> None:
    assert printed(Hanging("one two three four five six", "12:00  "), 28) == ["12:00  one two three four", "       five six"]
    assert printed(Hanging("", "label: "), 80) == ["label:"]
    path = "/a/path/" + "x" * 30
    assert printed(Hanging(f"in {path}", ""), 60) == [f"in {path}"]


@pytest.mark.parametrize(("tasks", "shown"), [
    ([], ""), (["a[0]"], "a[0]"), (["a[0]", "a[1]", "a[2]", "b[4]"], "a[0..2], b[4]"),
    (["a[10]", "a[2]", "a[0]", "a[1]"], "a[0..2, 10]"), (["__acker[0]", "x/y[1]"], "__acker[0], x/y[1]"),
])
def test_names_of_tasks(tasks: list[str], shown: str) -> None:
    assert task_names(tasks) == shown


@given(st.sets(st.integers(0, 50)))
def test_ranges_name_every_number_once(numbers: set[int]) -> None:
    named: list[int] = []
    for run in ranges(numbers).split(", ") if numbers else []:
        first, _, last = run.partition("..")
        named += range(int(first), int(last or first) + 1)
    assert named == sorted(numbers)


def test_events_that_name_many_tasks_are_shortened() -> None:
    assert shortened("lines[0], lines[1], split[0], count[3] placed on workers 0, 1") == (
        "lines[0..1], split[0], count[3] placed on workers 0, 1")
    assert shortened("count[1] moves from worker 1 to worker 0") == "count[1] moves from worker 1 to worker 0"
    odd = ", ".join(f"count[{index}]" for index in range(1, 1000, 2))
    assert len(shortened(f"{odd} are gone")) == LONGEST_EVENT + 4
