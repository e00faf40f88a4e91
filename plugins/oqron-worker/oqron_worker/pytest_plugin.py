"""
The pytest fixture for applications.

Every pytest run imports this module; what it needs beyond the package is imported
where it is used. Leave it out with ``-p no:oqron-worker``.
"""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def oqron_tester(oqron_runner: Any, oqron_clock: Any) -> Any:  # noqa: ARG001 - tests run in its loop
    """
    Give what makes an `AppTester` of an application, on the clock of ``oqron_clock``.

    An ``async def`` test that asks for it needs no other plugin:
    ``async with oqron_tester(app) as tester: …``.
    """
    from oqron_worker.testing import AppTester  # noqa: PLC0415 - only where it is used

    def make(app: Any) -> AppTester:
        return AppTester(app, oqron_clock)

    return make
