"""
A new backend's distribution, from templates that ship with core.

What it generates installs, is found by ``oqron plugins``, passes ``mypy --strict`` and
ruff, and fails its conformance run with `NotImplementedError` alone, method by method.
The methods are written from the contract itself, so they are always those of this
version.
"""

from __future__ import annotations

from oqron_core.scaffold._generate import Plan, generate, planned


__all__ = ["Plan", "generate", "planned"]
