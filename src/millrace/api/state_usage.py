"""Which keyed states a component uses. Found in its class, without running it, so that a topology knows before it starts
whether it has something to snapshot."""

from __future__ import annotations

from typing import Any

from millrace.api.bolt import Bolt
from millrace.api.component import Component
from millrace.api.keyed.declared import State, declared_states
from millrace.api.spout import Spout

OURS = {Component.__module__, Spout.__module__, Bolt.__module__}


def uses_state(component_cls: type[Component]) -> bool:
    """Whether the class declares keyed state of its own or mentions `state` in its code."""
    return any(isinstance(member, State) or "state" in _names(member) for member in _own_members(component_cls))


def used_states(component_cls: type[Component]) -> list[str]:
    """Names of the keyed states that the class declares; `state`, which every bolt has, only if its code mentions it."""
    mentioned = any("state" in _names(member) for member in _own_members(component_cls))
    return [name for name, state in declared_states(component_cls).items() if mentioned or state is not Bolt.state]


def _own_members(component_cls: type[Component]) -> list[Any]:
    """All that was written by whoever wrote the class."""
    own = [base for base in component_cls.__mro__ if base.__module__ not in OURS]
    return [member for base in own for member in vars(base).values()]


def _names(member: Any) -> set[str]:
    """The names that a function uses; also one inside a property, a decorator that tells what it wraps, or the like."""
    inside = [getattr(member, name, None) for name in ("__func__", "__wrapped__", "func", "fget", "fset")]
    code = member if hasattr(member, "co_names") else getattr(member, "__code__", None)
    if code is not None:
        inside += [constant for constant in code.co_consts if hasattr(constant, "co_names")]
    found = set(code.co_names) if code is not None else set()
    return found.union(*(_names(one) for one in inside if one is not None))
