from __future__ import annotations

from millrace.control.wording import groups_named, parts_word, shown


def test_names_are_shown_in_order() -> None:
    assert shown({"b", "a"}) == "a, b" and shown([]) == ""


def test_a_long_list_of_names_is_cut() -> None:
    assert shown("gfedcba") == "a, b, c, d, e and 2 more"


def test_spouts_have_splits_and_bolts_key_groups() -> None:
    moved = [("count", 1), ("lines", 0), ("lines", 5)]
    assert groups_named(moved, {"lines"}) == "1 key group of count, 2 splits of lines"
    assert parts_word(["lines"], {"lines": 8}, 1) == "split" and parts_word(["count"], {"lines": 8}) == "key groups"
    assert parts_word(["lines", "count"], {"lines"}) == "key groups and splits"
