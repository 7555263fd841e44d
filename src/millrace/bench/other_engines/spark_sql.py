"""Structured Streaming on the word count, in SQL only: split, explode, groupBy, count, update mode.

One shuffle partition: it is faster than two, as a batch has few counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyspark

if TYPE_CHECKING or __package__:
    from .reporting import parse_request, print_result
    from .spark_common import CORES, SQL, measure, scratch_directory, source_of, spark_session
else:
    from reporting import parse_request, print_result
    from spark_common import CORES, SQL, measure, scratch_directory, source_of, spark_session

SHUFFLE_PARTITIONS = 1


def main() -> None:
    request = parse_request(__doc__ or "")
    with scratch_directory() as scratch, spark_session(SHUFFLE_PARTITIONS, scratch) as session:
        results = measure(session, scratch, request, SQL)
    setting = f"local[{CORES}], {SHUFFLE_PARTITIONS} shuffle partition, {source_of(request)}"
    print_result("spark_sql", pyspark.__version__, setting, *results)


if __name__ == "__main__":
    main()
