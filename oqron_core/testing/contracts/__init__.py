"""
The contracts as test classes: a backend subclasses them and says how it opens.

.. code-block:: python

    from oqron_core.testing.contracts import DurablePlaneContract, HotPlaneContract


    class TestMine(HotPlaneContract, DurablePlaneContract):
        backend = "mine"  # the name of the entry point

        def settings(self):
            return {"url": "mine://localhost"}
"""

from __future__ import annotations

from oqron_core.testing.contracts.base import Contract, overridden, requires
from oqron_core.testing.contracts.broker import BrokerContract
from oqron_core.testing.contracts.cache import CacheContract
from oqron_core.testing.contracts.counters import CountersContract
from oqron_core.testing.contracts.isolation import (
    DurableIsolationContract,
    HotIsolationContract,
)
from oqron_core.testing.contracts.live import LiveRunsContract
from oqron_core.testing.contracts.locks import LocksContract
from oqron_core.testing.contracts.query import QueryContract
from oqron_core.testing.contracts.records import RecordsContract
from oqron_core.testing.contracts.rules import DurableRulesContract, HotRulesContract
from oqron_core.testing.contracts.signals import SignalsContract


__all__ = [
    "BrokerContract",
    "CacheContract",
    "Contract",
    "CountersContract",
    "DurableIsolationContract",
    "DurablePlaneContract",
    "DurableRulesContract",
    "HotIsolationContract",
    "HotPlaneContract",
    "HotRulesContract",
    "LiveRunsContract",
    "LocksContract",
    "QueryContract",
    "RecordsContract",
    "SignalsContract",
    "overridden",
    "requires",
]


class HotPlaneContract(
    BrokerContract,
    LocksContract,
    CountersContract,
    CacheContract,
    LiveRunsContract,
    SignalsContract,
    HotIsolationContract,
    HotRulesContract,
):
    """Everything that a hot plane must do."""


class DurablePlaneContract(
    RecordsContract, QueryContract, DurableIsolationContract, DurableRulesContract
):
    """Everything that a durable plane must do."""
