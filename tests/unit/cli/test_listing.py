"""Lists that fit the terminal."""

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


def printed(what: RenderableType, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def listing(name: str = "count") -> Listing:
    return Listing("words", Column("component", [name, "b"], figures=False), Column("tasks", ["2", "10"]),
                   Column("execute\nms", ["0.01/2", "-"], spare=True), Column("queue", ["0", "7"], spare=True))


def test_figures_stand_below_each_other() -> None:
    assert printed(listing(), 80) == ["words",
                                      "                  execute",
                                      "component  tasks       ms  queue",
                                      "count          2   0.01/2      0",
                                      "b             10        -      7"]


def test_spare_columns_are_left_out_the_last_first() -> None:
    full = 32
    assert "queue" in printed(listing(), full)[2]
    assert "queue" not in printed(listing(), full - 1)[2] and "ms" in printed(listing(), full - 1)[2]
    assert printed(listing(), 24)[1:] == ["component  tasks", "count          2", "b             10"]


def test_no_column_takes_the_place_of_one_before_it() -> None:
    shown = Listing("", Column("a", ["x"], figures=False), Column("wide", ["w" * 50], spare=True),
                    Column("b", ["1"], spare=True))
    assert [column.title for column in shown.fitting(20)] == ["a"]


def test_a_long_name_is_broken_before_a_column_goes() -> None:
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
def test_hosts_that_the_first_part_tells_apart(hosts: list[str], shown: list[str]) -> None:
    found = short_hosts(hosts)
    assert [found[host] for host in hosts] == shown


def test_what_looks_like_markup_is_shown_as_it_is() -> None:
    assert printed(Listing("[/bold]", Column("task", ["count[0]", "[red]x"], figures=False)), 80) == [
        "[/bold]", "task", "count[0]", "[red]x"]


def test_text_goes_on_under_itself() -> None:
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
    found: list[int] = []
    for run in ranges(numbers).split(", ") if numbers else []:
        first, _, last = run.partition("..")
        found += range(int(first), int(last or first) + 1)
    assert found == sorted(numbers)


def test_what_a_master_says_of_many_tasks() -> None:
    assert shortened("lines[0], lines[1], split[0], count[3] placed on workers 0, 1") == (
        "lines[0..1], split[0], count[3] placed on workers 0, 1")
    assert shortened("count[1] moves from worker 1 to worker 0") == "count[1] moves from worker 1 to worker 0"
    odd = ", ".join(f"count[{index}]" for index in range(1, 1000, 2))
    assert len(shortened(f"{odd} are gone")) == LONGEST_EVENT + 4
