"""Reads settings from a connector's `config`, with uniform errors."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from types import ModuleType
from typing import Any

from millrace.api.component import Component
from millrace.errors import TopologyError

REQUIRED: Any = object()
_NAMES = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}


def setting(component: Component, conf: Mapping[str, Any], key: str, kind: type, default: Any = REQUIRED, *,
            least: float | None = None, choices: Collection[str] | None = None) -> Any:
    """The checked value of `key`. `None` counts as absent, so that a config file can unset a value."""
    value: Any = conf.get(key)
    label = f"{component.component_name or '?'} ({type(component).__name__})"
    if value is None:
        if default is REQUIRED:
            raise TopologyError(f"{label} needs the setting {key!r} ({_NAMES[kind]}) and its config has none. "
                                f"Set it with spec(config={{{key!r}: ...}}).")
        return default
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    fits = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
    if not fits:
        raise TopologyError(f"{label}: setting {key!r} must be {_NAMES[kind]}, not {value!r} ({type(value).__name__})")
    if least is not None and not value >= least:  # `not >=` refuses NaN too
        raise TopologyError(f"{label}: setting {key!r} must be at least {least:g}, not {value!r}")
    if choices is not None and value not in choices:
        raise TopologyError(f"{label}: setting {key!r} is {value!r}; it must be one of {', '.join(sorted(choices))}")
    return value


def optional_module(name: str, extra: str, component: Component) -> ModuleType:
    """Imports a library that only this connector needs; the error names the extra that installs it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise TopologyError(f"{type(component).__name__} needs the Python package {error.name!r}, which is not "
                            f"installed on this worker: pip install millrace[{extra}]") from error
