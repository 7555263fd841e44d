from collections.abc import Callable
from typing import Any

from millrace.runtime.hotpath.plain import RowBuffer, Rows

def fast_emit(buffer: RowBuffer, slow: Callable[..., Any], form: str, track: bool, splits: int = 1,
              split: int = 0) -> Callable[..., Any]: ...
def buckets(rows: Rows, memory: dict[Any, int], positions: tuple[int, ...], count: int) -> list[list[tuple[Any, ...]]]: ...
