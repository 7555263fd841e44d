"""A name means one thing in the whole package, and a docstring says what its object is or does."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
SOURCE, TESTS = PROJECT / "src" / "millrace", PROJECT / "tests"
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# A docstring that opens with one of these names its subject too late.
QUESTIONS = {"What", "Who", "Whose", "Where", "When", "Why", "How", "Whether", "Which"}
ALIAS = re.compile(r"[A-Z]\w*[a-z]\w*")  # the name of a type, and not of a constant
SHARED_TYPES = {
    "ThroughputTest": "the topology of the T-Storm paper, and the same with other numbers of tasks, made by a function",
    "Tuple": "the hot path has it in Python, and `steps` chooses between that and the compiled one",
    "QuickDict": "the same",
    "RowDecoder": "the same",
}
SHARED_IMPORTS = {
    "WORDS_PER_LINE": "the job of other engines is the same, and its code runs where Millrace is not installed",
    "vocabulary": "the same",
    "Tuple": "the API passes on that of the hot path",
}


def modules(folder: Path = SOURCE) -> Iterator[tuple[str, ast.Module]]:
    """Each module of the package, or of another folder, with its path in the project."""
    for path in sorted(folder.rglob("*.py")):
        yield path.relative_to(PROJECT).as_posix(), ast.parse(path.read_text(), str(path))


def opens_with_a_question(docstring: str) -> bool:
    return docstring.split(maxsplit=1)[0].rstrip(",:") in QUESTIONS


def test_no_docstring_opens_with_a_question_word() -> None:
    wrong = [f"{path}:{getattr(node, 'lineno', 1)}" for folder in (SOURCE, TESTS)
             for path, tree in modules(folder) for node in ast.walk(tree) if isinstance(node, DOCUMENTED)
             and (text := ast.get_docstring(node)) and opens_with_a_question(text)]
    assert not wrong, "begin these docstrings with their subject, as 'True if' or 'Seconds until':\n" + "\n".join(wrong)


@pytest.mark.parametrize(("docstring", "expected"), [
    ("Whether it is late.", True), ("How long it takes.", True), ("What, then?", True), ("Why it is late.", True),
    ("True if it is late.", False), ("However it ends, close it.", False), ("Seconds until it ends.", False)])
def test_question_words_are_found(docstring: str, expected: bool) -> None:
    assert opens_with_a_question(docstring) == expected


def types_of(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The classes and the type aliases that a module defines, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name, node.lineno
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        yield from ((name, node.lineno) for name in names if ALIAS.fullmatch(name))


def imports_of(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The names that a module imports from others of the package, and these modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("millrace."):
            yield from ((alias.name, str(node.module)) for alias in node.names)


def shared(places: Mapping[str, set[str]], allowed: Mapping[str, str]) -> list[str]:
    assert allowed.keys() <= {name for name, where in places.items() if len(where) > 1}, "a name is listed that is not shared"
    return [f"{name}: {', '.join(sorted(where))}" for name, where in places.items() if len(where) > 1 and name not in allowed]


def test_every_name_of_a_type_is_used_once() -> None:
    places = defaultdict(set)
    for path, tree in modules():
        for name, line in types_of(tree):
            places[name].add(f"{path}:{line}")
    wrong = shared(places, SHARED_TYPES)
    assert not wrong, "rename all but one, or list the name in SHARED_TYPES with the reason:\n" + "\n".join(wrong)


def test_a_name_is_imported_from_one_module() -> None:
    """A constant or function that only its own module uses may have any name; one that others import has its own."""
    places = defaultdict(set)
    for _, tree in modules():
        for name, module in imports_of(tree):
            places[name].add(module)
    wrong = shared(places, SHARED_IMPORTS)
    assert not wrong, "rename all but one, or list the name in SHARED_IMPORTS with the reason:\n" + "\n".join(wrong)


@pytest.mark.parametrize(("code", "expected"), [
    ("class Request: ...", ["Request"]), ("def f():\n    class Inner: ...", ["Inner"]), ("Rows = list[tuple]", ["Rows"]),
    ("Rows: TypeAlias = list[tuple]", ["Rows"]),
    ("T = TypeVar('T')", []), ("LIMIT = 5", []), ("log = 5", []), ("def f():\n    Rows = 5", [])])
def test_types_of_every_form_are_found(code: str, expected: list[str]) -> None:
    assert [name for name, _ in types_of(ast.parse(code))] == expected
