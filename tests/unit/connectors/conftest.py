"""Makes `recording` importable, however pytest was told to import tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
