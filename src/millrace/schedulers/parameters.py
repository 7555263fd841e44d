"""Parameters of schedulers and estimators: the fields of a frozen dataclass, each with a range and a one-sentence description.

    @dataclass(frozen=True)
    class Pack:
        gamma: float = parameter(1.5, "How far to pack.", low=1.0)

        def __post_init__(self):
            check_parameters(self)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from millrace.errors import BadParameter

T = TypeVar("T")


def parameter(default: Any, about: str, *, low: float | None = None, high: float | None = None,
              choices: tuple[str, ...] = ()) -> Any:
    """Declares a field of a parameter class. `low` and `high` are the least and the largest value allowed."""
    return dataclasses.field(default=default, metadata={"about": about, "low": low, "high": high, "choices": choices})


def check_parameters(instance: Any) -> None:
    """Raises `BadParameter` if a field has an invalid value; converts numbers to the type of the default."""
    for field in dataclasses.fields(instance):
        value = _checked(type(instance).__name__, field, getattr(instance, field.name))
        object.__setattr__(instance, field.name, value)


def _checked(owner: str, field: dataclasses.Field[Any], value: Any) -> Any:
    default, rules = field.default, field.metadata
    name = f"{owner.lower()}: {field.name} = {value!r}"
    if rules.get("choices"):
        if value not in rules["choices"]:
            raise BadParameter(f"{name} is not one of {', '.join(rules['choices'])}")
        return value
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise BadParameter(f"{name} must be true or false")
        return value
    if value is None and default is None:
        return None
    if not isinstance(default, int | float | None):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadParameter(f"{name} must be a finite number")
    low, high = rules.get("low"), rules.get("high")
    if (low is not None and value < low) or (high is not None and value > high):
        allowed = f"at least {low:g}" if high is None else f"at most {high:g}" if low is None else f"from {low:g} to {high:g}"
        raise BadParameter(f"{name} is out of range: it must be {allowed}")
    if isinstance(default, int) and value != int(value):
        raise BadParameter(f"{name} must be a whole number")
    return type(default)(value) if default is not None else value


def with_parameters(cls: type[T], values: Mapping[str, Any], label: str) -> T:
    """Makes an instance of a parameter class; `BadParameter` for an unknown name, with a list of the known ones."""
    known = [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
    unknown = [name for name in values if name not in known]
    if unknown:
        raise BadParameter(f"{label} has no parameter {', '.join(map(repr, unknown))}; it has {', '.join(known) or 'none'}")
    return cls(**values)


def parameters_of(instance: Any) -> dict[str, Any]:
    """The values in force, by name."""
    if not dataclasses.is_dataclass(instance):
        return {}
    return {field.name: getattr(instance, field.name) for field in dataclasses.fields(instance)}


def described(cls: type[Any]) -> list[tuple[str, Any, str]]:
    """Name, default and description with the range of each parameter, for output."""
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    return [(field.name, _default_of(field), " ".join(filter(None, [field.metadata.get("about", ""), _range(field.metadata)])))
            for field in fields]


def _default_of(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _range(rules: Mapping[str, Any]) -> str:
    low, high = rules.get("low"), rules.get("high")
    if low is None and high is None:
        return ""
    return f"From {low:g} to {high:g}." if None not in (low, high) else f"From {low:g}." if high is None else f"Up to {high:g}."
