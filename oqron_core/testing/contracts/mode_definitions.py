"""The contract of definitions, in a whole mode."""

from __future__ import annotations

from typing import Any

import pytest

from oqron_core.exceptions import ConflictError, InvalidValueError
from oqron_core.planes import Query
from oqron_core.taxonomy import RecordKind
from oqron_core.testing.contracts.base import gather
from oqron_core.testing.contracts.mode import ModeBase
from oqron_core.testing.hostile import BAD_NAMES, NAMES, VALUES, same


__all__ = ["DefinitionsContract"]

NAMESPACES = ("cron", "schedule", "cache", "ratelimit", "topic", "webhook_endpoints:d")


class DefinitionsContract(ModeBase):
    """What is defined, versioned, for any board."""

    async def test_a_definition_is_kept_in_its_namespace(self) -> None:
        """Each namespace has its own, of the kind that the taxonomy says."""
        for namespace in NAMESPACES:
            made = await self.storage.definitions.put(namespace, "n", {"in": namespace})
            assert (namespace, "n", 1, {"in": namespace}) == (
                made.namespace, made.name, made.version, made.spec,
            )  # fmt: skip
        for namespace in NAMESPACES:
            assert {"in": namespace} == (await self.spec_of(namespace)).spec
        query = Query(kind=RecordKind.DEFINITION)

        assert 6 == await self.storage.durable.count(query)

    async def spec_of(self, namespace: str = "cache", name: str = "n") -> Any:
        """Read a definition, which must be there."""
        found = await self.storage.definitions.get(namespace, name)
        assert found is not None
        return found

    async def test_a_change_counts_up_and_sameness_does_not(self) -> None:
        """1 is 1.0 and the order of keys is nothing; time stands still with the version."""
        put = self.storage.definitions.put
        first = await put("cache", "n", {"a": 1, "b": [1, {"c": None}]})
        await self.elapse(0.01)
        assert first == await put("cache", "n", {"b": [1, {"c": None}], "a": 1.0})
        second = await put("cache", "n", {"a": 1, "b": [1, {"c": 0}]})
        assert (2, {"a": 1, "b": [1, {"c": 0}]}) == (second.version, second.spec)
        assert second.updated_at > first.updated_at
        third = await put("cache", "n")

        assert (3, {}) == (third.version, third.spec)
        assert third == await self.spec_of()

    async def test_any_object_is_a_spec(self) -> None:
        """Hostile values come back equal, and count as unchanged."""
        for number, value in enumerate(VALUES):
            made = await self.storage.definitions.put("topic", f"n{number}", {"v": value})
            again = await self.storage.definitions.put("topic", f"n{number}", {"v": value})
            assert same({"v": value}, (await self.spec_of("topic", f"n{number}")).spec)
            assert (1, 1) == (made.version, again.version)

    async def test_versions_of_the_caller_go_up_only(self) -> None:
        """An older one is refused, and one that stands for two specs."""
        put = self.storage.definitions.put
        assert 5 == (await put("cache", "n", {"a": 1}, version=5)).version
        assert 5 == (await put("cache", "n", {"a": 1}, version=5)).version
        with pytest.raises(ConflictError, match="older"):
            await put("cache", "n", {"a": 0}, version=4)
        with pytest.raises(ConflictError, match="older"):
            await put("cache", "n", {"a": 1}, version=4)
        with pytest.raises(ConflictError, match="another spec"):
            await put("cache", "n", {"a": 2}, version=5)
        assert {"a": 1} == (await self.spec_of()).spec
        assert 7 == (await put("cache", "n", {"a": 1}, version=7)).version
        assert 9 == (await put("cache", "n", {"a": 2}, version=9)).version

        assert 10 == (await put("cache", "n", {"a": 3})).version

    async def test_no_update_is_lost(self) -> None:
        """Twelve writers of different specs: each counts once."""
        await gather(self.storage.definitions.put("cache", "n", {"w": n}) for n in range(12))

        assert 12 == (await self.spec_of()).version

    async def test_a_definition_under_way_does_not_undo_another(self) -> None:
        """Who was slower finds the newer spec, and counts on from there."""
        put = self.storage.definitions.put
        await put("cache", "n", {"w": 0})
        pause = self.faults.pause("durable.write")
        slow = self.storage._session.spawn(put("cache", "n", {"w": 1}), name="slow")
        await pause.reached.wait()
        async with self.open() as other:
            await other.definitions.put("cache", "n", {"w": 2})
        pause.release()

        assert (3, {"w": 1}) == ((await slow).version, (await slow).spec)
        assert await slow == await self.spec_of()

    async def test_an_older_version_under_way_does_not_win(self) -> None:
        """It was written second, and is refused all the same."""
        put = self.storage.definitions.put
        await put("cache", "n", {"w": 1}, version=1)
        pause = self.faults.pause("durable.write")
        slow = self.storage._session.spawn(put("cache", "n", {"w": 2}, version=2), name="slow")
        await pause.reached.wait()
        async with self.open() as other:
            await other.definitions.put("cache", "n", {"w": 3}, version=3)
        pause.release()
        with pytest.raises(ConflictError, match="older"):
            await slow

        assert {"w": 3} == (await self.spec_of()).spec

    async def test_lists_show_where_everything_stands(self) -> None:
        """All namespaces, or one; paged without a gap."""
        put = self.storage.definitions.put
        for namespace in NAMESPACES:
            for n in range(3):
                await put(namespace, f"n{n}")
        found: list[tuple[str, str]] = []
        after: str | None = None
        while True:
            page = await self.storage.definitions.query(limit=4, after=after)
            found += [(one.namespace, one.name) for one in page]
            after = page.next
            if after is None:
                break

        assert sorted((ns, f"n{n}") for ns in NAMESPACES for n in range(3)) == found
        page = await self.storage.definitions.query("webhook_endpoints:d")
        assert ["n0", "n1", "n2"] == [one.name for one in page]

    async def test_a_deleted_definition_is_gone(self) -> None:
        """And one that is made anew begins with version 1."""
        definitions = self.storage.definitions
        await definitions.put("cache", "n", {"a": 1})
        await definitions.put("cache", "n", {"a": 2})
        assert await definitions.delete("cache", "n")
        assert not await definitions.delete("cache", "n")
        assert await definitions.get("cache", "n") is None

        assert 1 == (await definitions.put("cache", "n", {"a": 3})).version

    async def test_what_is_no_definition_is_refused(self) -> None:
        """Other namespaces, names, specs and versions, before any write."""
        put: Any = self.storage.definitions.put
        for namespace in ("queue", "runs", "queue_job:q", "custom", "cron:x", "webhook_endpoints"):
            with pytest.raises(InvalidValueError):
                await put(namespace, "n", {})
        for name in BAD_NAMES:
            with pytest.raises(InvalidValueError):
                await put("cache", name, {})
        specs: list[Any] = [[], "x", 3, {"a": float("inf")}, {1: 2}]
        for spec in specs:
            with pytest.raises(InvalidValueError):
                await put("cache", "n", spec)
        for version in (0, -1, 1.5, True, "1"):
            with pytest.raises(InvalidValueError):
                await put("cache", "n", {}, version=version)

        assert 0 == len(await self.storage.definitions.query())

    async def test_hostile_names_stay_apart(self) -> None:
        """Any legal name is a definition of its own."""
        for name in NAMES:
            await self.storage.definitions.put("cache", name, {"is": name})
        for name in NAMES:
            assert {"is": name} == (await self.spec_of("cache", name)).spec

    async def test_the_spec_of_a_pointer_is_its_schedules(self) -> None:
        """A board reads it here, and cannot change it without the pointer."""
        await self.storage.schedules.put("cron", "n", next_run_at=10**13, spec={"a": 1})
        assert ({"a": 1}, 1) == ((await self.spec_of("cron")).spec, 1)
        with pytest.raises(InvalidValueError, match=r"schedules\.put"):
            await self.storage.definitions.put("cron", "n", {"a": 2})
        await self.storage.definitions.put("cron", "m", {"b": 1})
        adopted = await self.storage.schedules.put("cron", "m", next_run_at=5, spec={"b": 1})

        assert (5, {"b": 1}, 2) == (adopted.next_run_at, adopted.spec, adopted.version)
        assert ["m"] == [one.name for one in await self.storage.schedules.due()]
