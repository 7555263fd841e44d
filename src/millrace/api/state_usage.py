"""Finds the keyed states that a component uses, from its class alone, so that a topology knows before it starts whether it has
state to snapshot."""

from __future__ import annotations

from typing import Any

from millrace.api.bolt import Bolt
from millrace.api.component import Component
from millrace.api.keyed.declared import State, declared_states
from millrace.api.spout import Spout

OURS = {Component.__module__, Spout.__module__, Bolt.__module__}


def uses_state(component_cls: type[Component]) -> bool:
    """True if the class declares keyed state or mentions `state` in its code."""
    return any(isinstance(member, State) or "state" in _names(member) for member in _own_members(component_cls))


def used_states(component_cls: type[Component]) -> list[str]:
    """Names of the keyed states that the class declares; `state`, which every bolt has, only if its code mentions it."""
    mentioned = any("state" in _names(member) for member in _own_members(component_cls))
    return [name for name, state in declared_states(component_cls).items() if mentioned or state is not Bolt.state]


def _own_members(component_cls: type[Component]) -> list[Any]:
    """The members of the user's classes: those of Millrace's base classes are left out."""
    user_classes = [base for base in component_cls.__mro__ if base.__module__ not in OURS]
    return [member for base in user_classes for member in vars(base).values()]


def _names(member: Any) -> set[str]:
    """The names that a function uses, including inside a property or a decorator that exposes the function it wraps."""
    inside = [getattr(member, name, None) for name in ("__func__", "__wrapped__", "func", "fget", "fset")]
    code = member if hasattr(member, "co_names") else getattr(member, "__code__", None)
    if code is not None:
        inside += [constant for constant in code.co_consts if hasattr(constant, "co_names")]
    names = set(code.co_names) if code is not None else set()
    return names.union(*(_names(part) for part in inside if part is not None))
