"""Fixtures of the worker's tests."""

from __future__ import annotations

import sys

from pathlib import Path


# Worker processes and process pools import the applications of these tests by name.
sys.path.append(str(Path(__file__).parent))
