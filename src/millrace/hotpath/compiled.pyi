from millrace.hotpath.plain import QuickDict as QuickDict
from millrace.hotpath.plain import RowDecoder as RowDecoder
from millrace.hotpath.plain import Tuple as Tuple
from millrace.hotpath.plain import buckets as buckets
from millrace.hotpath.plain import fast_emit as fast_emit
from millrace.hotpath.plain import name_rows as name_rows
from millrace.hotpath.plain import plain_rows as plain_rows
from millrace.hotpath.plain import tuples_of as tuples_of
