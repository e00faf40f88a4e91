"""What every test shares. Fixtures are in the ``fix_*.py`` modules beside this one."""

from __future__ import annotations

import sys

from pathlib import Path


# Tests are collected by the importlib mode, which leaves the path alone: the
# fixture modules are found because this line names their folder, and nothing else
# of the checkout becomes importable by it.
sys.path.append(str(Path(__file__).parent))

pytest_plugins = ["fix_servers"]
