"""``oqron demo``: a job system at work, and what is left of it to look at."""

from __future__ import annotations

from oqron_core.cli.demo._command import demo


__all__ = ["demo"]
