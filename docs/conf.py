"""How Sphinx builds this documentation: ``nox -s docs``, where a warning is an error."""

from __future__ import annotations

import importlib.metadata


project = "oqron"
author = "the oqron authors"
copyright = f"2026, {author}"
release = version = importlib.metadata.version("oqron-core")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
nitpicky = True

# In docstrings, `name` is code; a link is asked for by its role.
default_role = "code"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_class_signature = "separated"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
# Types in signatures are of many libraries, and of modules that are not public.
nitpick_ignore_regex = [("py:.*", ".*")]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"oqron {release}"
html_show_sphinx = False
