"""The tree of exceptions in the docstring of `millrace.errors`, compared with the classes."""

from __future__ import annotations

import re

from millrace import errors

LINE = re.compile(r"^    [├└]── (\w+) +\S.*?(?: \(also an? (\w+)\))?$", re.MULTILINE)


def test_the_tree_in_the_docstring_has_every_exception_and_its_other_base() -> None:
    classes = {name: next((base.__name__ for base in kind.__bases__ if base is not errors.MillraceError), "")
               for name, kind in vars(errors).items()
               if isinstance(kind, type) and issubclass(kind, errors.MillraceError) and kind is not errors.MillraceError}
    listed = LINE.findall(errors.__doc__ or "")
    assert dict(listed) == classes
    assert len(listed) == len(classes), "one is listed twice"
