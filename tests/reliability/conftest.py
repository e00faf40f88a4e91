"""Makes the chaos package importable for the tests beside it."""

from __future__ import annotations

import sys

from pathlib import Path


# As the folder above does for its fixtures.
sys.path.append(str(Path(__file__).parent))

from fix_leaks import setting


__all__ = ["setting"]
