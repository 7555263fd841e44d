"""A class name means one thing in the whole package, and a docstring says what its object is or does."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "millrace"
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# A docstring that opens with one of these names its subject too late.
QUESTIONS = {"What", "Who", "Whose", "Where", "When", "Why", "How", "Whether", "Which"}
SHARED_NAMES = {
    "ThroughputTest": "the topology of the T-Storm paper, and the same with other numbers of tasks, made by a function",
}


def nodes(*kinds: type[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    """Each node of these kinds in the package, with its place."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(), str(path))):
            if isinstance(node, kinds):
                yield f"src/millrace/{path.relative_to(SOURCE)}:{getattr(node, 'lineno', 1)}", node


def opens_with_a_question(docstring: str) -> bool:
    return docstring.split(maxsplit=1)[0].rstrip(",:") in QUESTIONS


def test_no_docstring_opens_with_a_question_word() -> None:
    wrong = [place for place, node in nodes(*DOCUMENTED) if isinstance(node, DOCUMENTED)
             and (text := ast.get_docstring(node)) and opens_with_a_question(text)]
    assert not wrong, "begin these docstrings with their subject, as 'True if' or 'Seconds until':\n" + "\n".join(wrong)


@pytest.mark.parametrize(("docstring", "expected"), [
    ("Whether it is late.", True), ("How long it takes.", True), ("What, then?", True), ("Why it is late.", True),
    ("True if it is late.", False), ("However it ends, close it.", False), ("Seconds until it ends.", False)])
def test_question_words_are_found(docstring: str, expected: bool) -> None:
    assert opens_with_a_question(docstring) == expected


def test_every_class_name_is_used_once() -> None:
    places = defaultdict(list)
    for place, node in nodes(ast.ClassDef):
        assert isinstance(node, ast.ClassDef)
        places[node.name].append(place)
    shared = {name: found for name, found in places.items() if len(found) > 1}
    wrong = [f"{name}: {', '.join(found)}" for name, found in shared.items() if name not in SHARED_NAMES]
    assert not wrong, "rename all but one, or list the name in SHARED_NAMES with the reason:\n" + "\n".join(wrong)
    assert SHARED_NAMES.keys() <= shared.keys(), "SHARED_NAMES lists a name that is not shared"
