from __future__ import annotations

from millrace.control.wording import shown


def test_names_are_shown_in_order() -> None:
    assert shown({"b", "a"}) == "a, b" and shown([]) == ""


def test_a_long_list_of_names_is_cut() -> None:
    assert shown("gfedcba") == "a, b, c, d, e and 2 more"
