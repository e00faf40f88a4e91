"""What every test shares. Fixtures are in the ``fix_*.py`` modules beside this one."""

from __future__ import annotations

import gc
import signal
import sys

from collections.abc import Iterator
from pathlib import Path

import pytest

from hypothesis import HealthCheck, settings


# How long an example takes is the machine's affair.
settings.register_profile("oqron", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("oqron")

# Tests are collected by the importlib mode, which leaves the path alone: the
# fixture modules are found because this line names their folder, and nothing else
# of the checkout becomes importable by it.
sys.path.append(str(Path(__file__).parent))

pytest_plugins = ["fix_servers"]


def pytest_collection_finish() -> None:
    """Keep the collector off what stays: thousands of tests, and all that they import."""
    gc.collect()
    gc.freeze()


def pytest_sessionstart() -> None:
    """Let SIGINT arrive, here and in processes of tests, also where a shell ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _no_terminal() -> Iterator[None]:
    """Print as into a pipe: whoever started the tests may have told a terminal's width."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("COLUMNS", "LINES"):
            patch.delenv(name, raising=False)
        yield
