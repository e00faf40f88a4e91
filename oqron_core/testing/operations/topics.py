"""Topics: what is published reaches each group, whoever dies on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from oqron_core.protocol.claims import Claim
from oqron_core.storage import Storage
from oqron_core.testing.operations.state import LEASE
from oqron_core.testing.operations.walk import Case


__all__ = ["CASES"]

TOPIC: Final = "t"
GROUPS: Final = ("g", "h")


async def _two_groups(storage: Storage, given: Any) -> None:
    del given
    for group in GROUPS:
        await storage.topics.subscribe(TOPIC, group)


async def _a_log(storage: Storage, given: Any) -> None:
    """A topic with a group that has had its messages, three of one key and one of none."""
    del given
    await storage.topics.subscribe(TOPIC, "h")
    await storage.topics.publish_many(TOPIC, [1, 2, 3], key="k")
    await storage.topics.publish(TOPIC, 4)
    while claims := await storage.topics.claim(TOPIC, "h", limit=10, lease_for=LEASE):
        await storage.jobs.complete_many([(claim, None) for claim in claims])


async def _waiting(storage: Storage, given: Any) -> None:
    """Two groups with messages to work on: two of one key, one of none."""
    await _two_groups(storage, given)
    await storage.topics.publish_many(TOPIC, [1, 2], key="k")
    await storage.topics.publish(TOPIC, 3)


async def _paused(storage: Storage, given: Any) -> None:
    await _waiting(storage, given)
    await storage.topics.pause(TOPIC, "g")


async def _claimed(storage: Storage, given: Any) -> list[Claim]:
    await _waiting(storage, given)
    return await storage.topics.claim(TOPIC, "g", lease_for=LEASE)


async def _claimed_last(storage: Storage, given: Any) -> list[Claim]:
    del given
    await storage.topics.subscribe(TOPIC, "g", max_attempts=1)
    await storage.topics.publish_many(TOPIC, [1, 2], key="k")
    return await storage.topics.claim(TOPIC, "g", lease_for=LEASE)


async def _publish(storage: Storage, given: Any) -> None:
    del given
    await storage.topics.publish(TOPIC, 1, key="k", idempotency_key="once", headers={"a": 1})


async def _publish_unnamed(storage: Storage, given: Any) -> None:
    del given
    await storage.topics.publish(TOPIC, 1)


async def _publish_many(storage: Storage, given: Any) -> None:
    del given
    await storage.topics.publish_many(TOPIC, [1, 2, 3])


async def _subscribe(storage: Storage, given: Any) -> None:
    del given
    await storage.topics.subscribe(TOPIC, "g", start="earliest")


async def _subscribe_latest(storage: Storage, given: Any) -> None:
    del given
    await storage.topics.subscribe(TOPIC, "g")


async def _unsubscribe(storage: Storage, given: Any) -> None:
    del given
    await storage.topics.unsubscribe(TOPIC, "g")


async def _pause(storage: Storage, given: Any) -> None:
    del given
    await storage.topics.pause(TOPIC, "g")


async def _resume(storage: Storage, given: Any) -> None:
    del given
    await storage.topics.resume(TOPIC, "g")


async def _claim(storage: Storage, given: Any) -> list[Claim]:
    del given
    return await storage.topics.claim(TOPIC, "g", limit=5, lease_for=LEASE)


async def _complete(storage: Storage, claims: Any) -> None:
    await storage.topics.complete(claims[0])


async def _fail(storage: Storage, claims: Any) -> None:
    await storage.topics.fail(claims[0], "boom", retry_in=0.0)


async def _release(storage: Storage, claims: Any) -> None:
    await storage.topics.release(claims[0])


async def _replay(storage: Storage, given: Any) -> None:
    del given
    await storage.topics.replay(TOPIC, "h")


async def _seek_to_the_start(storage: Storage, given: Any) -> None:
    del given
    await storage.topics.seek(TOPIC, "g", to="earliest")


async def _seek_to_the_end(storage: Storage, given: Any) -> None:
    del given
    await storage.topics.seek(TOPIC, "g", to="latest")


async def _nothing_is_handed_out(storage: Storage) -> None:
    claims = await storage.topics.claim(TOPIC, "g", limit=10, lease_for=LEASE)
    assert not claims, f"group g was handed {[claim.id for claim in claims]}"


async def _reaches_the_group(storage: Storage) -> None:
    """What is published after the subscription is delivered."""
    before = await storage.topics.lag(TOPIC, "g")
    await storage.topics.publish(TOPIC, "after", idempotency_key="after")
    assert before + 1 == await storage.topics.lag(TOPIC, "g")
    # Looked at alone: what the scenario ends with is the same as without it.
    for queue in ("g", "h"):
        for job in await storage.jobs.query(f"oqron:topic:1:{TOPIC}:{queue}", limit=100):
            if job.data["message"] == "after":
                await storage.jobs.cancel(job.queue_name, job.id)


def _the_answer(given: Any, answer: Any) -> Sequence[Claim]:
    del given
    return [claim for claim in answer if not claim.settled]


CASES: Final[tuple[Case, ...]] = (
    Case(name="publish", covers=("topics.publish",), prepare=_two_groups, act=_publish),
    Case(
        name="publish without an idempotency key",
        covers=("topics.publish",),
        prepare=_two_groups,
        act=_publish_unnamed,
        twice=True,
    ),
    Case(
        name="publish to a topic without groups",
        covers=("topics.publish",),
        act=_publish,
    ),
    Case(
        name="publish many",
        covers=("topics.publish_many",),
        prepare=_two_groups,
        act=_publish_many,
        twice=True,
    ),
    Case(
        name="subscribe from the start",
        covers=("topics.subscribe",),
        prepare=_a_log,
        act=_subscribe,
    ),
    Case(
        name="subscribe to a new topic",
        covers=("topics.subscribe",),
        act=_subscribe_latest,
    ),
    Case(
        name="unsubscribe",
        covers=("topics.unsubscribe",),
        prepare=_waiting,
        act=_unsubscribe,
        holds=_nothing_is_handed_out,
    ),
    Case(
        name="pause a group",
        covers=("topics.pause",),
        prepare=_waiting,
        act=_pause,
        holds=_nothing_is_handed_out,
    ),
    Case(name="resume a group", covers=("topics.resume",), prepare=_paused, act=_resume),
    Case(
        name="claim deliveries",
        covers=("topics.claim",),
        prepare=_waiting,
        act=_claim,
        again="never",
        held=_the_answer,
    ),
    Case(
        name="complete a delivery",
        covers=("topics.complete",),
        prepare=_claimed,
        act=_complete,
        again="here",
    ),
    Case(
        name="fail a delivery",
        covers=("topics.fail",),
        prepare=_claimed,
        act=_fail,
        again="here",
    ),
    Case(
        name="fail the last attempt of a delivery",
        covers=("topics.fail",),
        prepare=_claimed_last,
        act=_fail,
        again="here",
    ),
    Case(
        name="release a delivery",
        covers=("topics.release",),
        prepare=_claimed,
        act=_release,
        again="here",
    ),
    Case(name="replay", covers=("topics.replay",), prepare=_a_log, act=_replay, twice=True),
    Case(
        name="seek to the start",
        covers=("topics.seek",),
        prepare=_waiting,
        act=_seek_to_the_start,
    ),
    Case(
        name="seek to the end",
        covers=("topics.seek",),
        prepare=_waiting,
        act=_seek_to_the_end,
        holds=_nothing_is_handed_out,
    ),
)
