"""The contract of `Locks`: one holder, leases, fencing tokens."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import pytest

from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import Entry, Lease, Locks
from oqron_core.testing.contracts.base import Contract, gather
from oqron_core.testing.hostile import BAD_NAMES, NAMES


__all__ = ["LocksContract"]

LONG = 30.0
SHORT = 0.05


class LocksContract(Contract):
    """What every implementation of locks must do."""

    _wants_hot: ClassVar[bool] = True

    @property
    def locks(self) -> Locks:
        """The locks under test."""
        return self.hot.locks

    async def lock(self, key: str = "k", *, owner: str = "w1", lease_for: float = LONG) -> Lease:
        """Acquire a lock that must be free."""
        lease = await self.locks.acquire(key, owner=owner, lease_for=lease_for)
        assert lease is not None
        return lease

    async def is_free(self, key: str = "k") -> bool:
        """Try to take a lock."""
        return await self.locks.acquire(key, owner="probe", lease_for=LONG) is not None

    async def test_a_lock_has_one_holder(self) -> None:
        """Others are refused while it is held, the same owner too."""
        await self.lock(owner="w1")

        assert await self.locks.acquire("k", owner="w2", lease_for=LONG) is None
        assert await self.locks.acquire("k", owner="w1", lease_for=LONG) is None

    async def test_a_lock_lease_says_what_is_held(self) -> None:
        """Every field of the lease is right."""
        before = await self.hot.now()
        lease = await self.lock(owner="w é")
        after = await self.hot.now()

        assert ("", "k", "w é") == (lease.queue, lease.id, lease.owner)
        assert isinstance(lease.token, int)
        assert before + 29_900 <= lease.expires_at <= after + 30_100

    async def test_of_fifty_acquirers_one_wins(self) -> None:
        """A crowd makes one holder."""
        leases = await gather(
            self.locks.acquire("k", owner=f"w{number}", lease_for=LONG) for number in range(50)
        )
        [winner] = [lease for lease in leases if lease is not None]

        assert winner == await self.locks.holder("k")

    async def test_lock_tokens_grow(self) -> None:
        """With each acquisition, after a release and after a lapse."""
        first = await self.lock()
        await self.locks.release(first)
        second = await self.lock(lease_for=SHORT)
        await self.elapse(0.2)
        third = await self.lock()

        assert first.token < second.token < third.token

    async def test_locks_of_different_keys_are_apart(self) -> None:
        """Every legal name is a key of its own."""
        for name in NAMES:
            assert (await self.lock(name)).id == name
        for name in NAMES:
            holder = await self.locks.holder(name)
            assert holder is not None
            assert holder.id == name

    async def test_a_lock_and_a_queue_of_one_name_are_apart(self) -> None:
        """The lock does not stop the queue."""
        await self.lock("q")
        await self.hot.broker.publish("q", [Entry("q")])
        [lease] = await self.hot.broker.claim("q", owner="w", lease_for=LONG)

        assert [True] == list(await self.hot.broker.ack([lease]))
        assert await self.locks.holder("q") is not None

    async def test_a_released_lock_is_free(self) -> None:
        """Giving back is once."""
        lease = await self.lock()

        assert await self.locks.release(lease) is True
        assert await self.locks.holder("k") is None
        assert await self.locks.release(lease) is False
        assert await self.locks.renew(lease, lease_for=LONG) is False
        assert await self.is_free()

    async def test_a_lapsed_lock_can_be_taken(self) -> None:
        """A dead holder blocks nobody for longer than its lease."""
        await self.lock(lease_for=SHORT)
        await self.elapse(0.2)

        assert await self.locks.holder("k") is None
        assert await self.is_free()

    async def test_renewal_keeps_a_lock(self) -> None:
        """It is held beyond its first end, and the holder shows the new one."""
        lease = await self.lock(lease_for=1.5)
        assert await self.locks.renew(lease, lease_for=LONG) is True
        holder = await self.locks.holder("k")
        await self.elapse(1.7)

        assert holder is not None
        assert holder.token == lease.token
        assert holder.expires_at > lease.expires_at
        assert not await self.is_free()

    async def test_lock_renewal_counts_from_now(self) -> None:
        """A shorter renewal shortens."""
        lease = await self.lock()
        await self.locks.renew(lease, lease_for=SHORT)
        await self.elapse(0.2)

        assert await self.is_free()

    async def test_a_lapsed_lock_cannot_be_renewed(self) -> None:
        """Also where nobody has taken over yet."""
        lease = await self.lock(lease_for=SHORT)
        await self.elapse(0.2)

        assert await self.locks.renew(lease, lease_for=LONG) is False
        assert await self.locks.release(lease) is False
        assert await self.is_free()

    async def test_a_stale_lease_does_not_touch_the_new_holder(self) -> None:
        """The old holder can neither renew nor release."""
        old = await self.lock(lease_for=SHORT)
        await self.elapse(0.2)
        new = await self.lock(owner="w2")

        assert await self.locks.renew(old, lease_for=SHORT) is False
        assert await self.locks.release(old) is False
        assert new == await self.locks.holder("k")

    async def test_a_forged_lock_token_is_refused(self) -> None:
        """Same owner, other token: not yours."""
        lease = await self.lock()
        forged = attrs.evolve(lease, token=lease.token + 1)

        assert await self.locks.release(forged) is False
        assert await self.locks.renew(forged, lease_for=LONG) is False
        assert lease == await self.locks.holder("k")

    async def test_nobody_holds_a_free_lock(self) -> None:
        """Absence is None."""
        assert await self.locks.holder("k") is None

    @pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
    async def test_a_bad_lock_name_is_refused(self, name: Any) -> None:
        """As a key and as an owner."""
        with pytest.raises(InvalidValueError):
            await self.locks.acquire(name, owner="w", lease_for=LONG)
        with pytest.raises(InvalidValueError):
            await self.locks.acquire("k", owner=name, lease_for=LONG)
        with pytest.raises(InvalidValueError):
            await self.locks.holder(name)

        assert await self.locks.holder("k") is None

    @pytest.mark.parametrize(
        "bad", [0, 0.049, -1, float("nan"), float("inf"), "30", None, True], ids=repr
    )
    async def test_a_bad_lock_time_is_refused(self, bad: Any) -> None:
        """A lock without an end cannot be had."""
        with pytest.raises(InvalidValueError):
            await self.locks.acquire("k", owner="w", lease_for=bad)
        lease = await self.lock()
        with pytest.raises(InvalidValueError):
            await self.locks.renew(lease, lease_for=bad)

        assert await self.locks.release(lease) is True
