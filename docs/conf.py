"""How Sphinx builds this documentation: ``nox -s docs``, where a warning is an error."""

from __future__ import annotations

import importlib.metadata


project = "oqron"
author = "the oqron authors"
copyright = f"2026, {author}"
release = version = importlib.metadata.version("oqron-core")

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
nitpicky = True

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"oqron {release}"
html_show_sphinx = False
