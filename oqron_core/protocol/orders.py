"""
The life of a job on two planes.

Every step writes the durable plane first; what follows on the hot plane may be
lost at any moment and is made good by the next claim, a lapse, or maintenance.
"""

from __future__ import annotations

from oqron_core.protocol.adding import Adding
from oqron_core.protocol.cancels import Claims
from oqron_core.protocol.claiming import Claiming
from oqron_core.protocol.ending import Ending
from oqron_core.protocol.session import Session
from oqron_core.protocol.settling import Settling


__all__ = ["Orders"]


class Orders:
    """
    The steps of a job's life, for whichever service makes jobs.

    Attributes:
        adding: Make a job.
        claiming: Hand jobs out.
        settling: What a lease allows.
        ending: What none allows: cancel, requeue.
    """

    def __init__(self, session: Session) -> None:
        claims = Claims(session)
        self.adding: Adding = Adding(session)
        self.settling: Settling = Settling(session)
        self.claiming: Claiming = Claiming(session, self.settling, claims)
        self.ending: Ending = Ending(session, claims)
