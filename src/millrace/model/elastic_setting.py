"""The model by which a topology is scaled by itself, as a user chose it: a value that checkpoints keep."""

from __future__ import annotations

import msgspec


class ElasticSetting(msgspec.Struct, frozen=True, array_like=True):
    """`values`: limits, parameters of the model and settings of the loop in force, by name."""

    model: str
    values: dict[str, bool | int | float]
