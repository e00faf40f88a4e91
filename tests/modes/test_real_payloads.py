"""Real payloads and hostile strings, read back equal from everywhere they go."""

from __future__ import annotations

import json

from pathlib import Path
from typing import Any

import pytest

from fix_memory import MemoryMode
from oqron_core.exceptions import InvalidValueError
from oqron_core.models import JobSpec
from oqron_core.testing.contracts.mode import ModeBase
from oqron_core.testing.hostile import same


DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def text_of(name: str) -> str:
    """Read a data file; the tests that need it are skipped where it is not there."""
    path = DATA / name
    if not path.is_file():
        pytest.skip(f"{path.name} is not beside the project")
    return path.read_text(encoding="utf-8")


@pytest.fixture
def webhooks() -> list[Any]:
    """Give payloads of real webhooks."""
    return [json.loads(line) for line in text_of("github-webhooks.jsonl").split("\n") if line]


@pytest.fixture
def strings() -> list[str]:
    """Give strings that have broken software."""
    found: list[str] = json.loads(text_of("naughty-strings.json"))
    return list(dict.fromkeys(found))


@pytest.fixture
def json_files() -> list[tuple[str, bytes]]:
    """Give a suite of JSON texts, legal and not."""
    folder = DATA / "json-test-suite"
    if not folder.is_dir():
        pytest.skip("the suite of JSON texts is not beside the project")
    return [(path.name, path.read_bytes()) for path in sorted(folder.glob("*.json"))]


def is_name(text: str) -> bool:
    """Say whether a string is a legal name, by the words of the contract."""
    return 0 < len(text) <= 255 and len(text.encode()) <= 512 and "\0" not in text


class WebhookTests(ModeBase):
    """What holds for real payloads."""

    async def test_webhooks_are_equal_wherever_they_are_read(self, webhooks: list[Any]) -> None:
        """Job, claim, run input, retry, dead letter, requeue and cancel."""
        jobs = self.storage.jobs
        size = len(webhooks)
        ids = [f"{number:04}" for number in range(size)]
        await jobs.add_many(
            "hooks", [JobSpec(v, id=i, max_attempts=2) for i, v in zip(ids, webhooks, strict=True)]
        )
        for attempt in (1, 2):
            claims = await jobs.claim("hooks", limit=size)
            assert ids == [claim.job.id for claim in claims]
            for claim, payload in zip(claims, webhooks, strict=True):
                assert same(payload, claim.job.data), (claim.job.id, attempt)
                job = await jobs.fail(claim, "again", retry_in=0.0)
                assert same(payload, job.data)
        letters = await self.storage.dead_letters.query("hooks", limit=10_000)
        assert all(map(same, webhooks, [letter.data for letter in letters]))
        for i, payload in zip(ids, webhooks, strict=True):
            requeued = await self.storage.dead_letters.requeue("hooks", i)
            assert requeued is not None
            assert same(payload, requeued.data)
        claims = await jobs.claim("hooks", limit=size // 2)
        await jobs.complete_many([(claim, claim.job.data) for claim in claims])
        for i in ids[size // 2 :]:
            assert await jobs.cancel("hooks", i)
        for i, payload in zip(ids, webhooks, strict=True):
            read = await jobs.get("hooks", i)
            assert read is not None
            assert same(payload, read.data), i
            if read.status == "completed":
                assert same(payload, read.return_value), i
            for run in await self.storage.runs.query(job_id=i):
                assert same(payload, run.input), i


class TextTests(ModeBase):
    """What holds for texts that broke others, in any mode."""

    _sections: dict[str, Any]

    async def test_hostile_strings_are_names_and_values(self, strings: list[str]) -> None:
        """Every legal one is a queue, an id and a payload; the others are refused."""
        jobs = self.storage.jobs
        used = 0
        for text in strings:
            if not is_name(text):
                with pytest.raises(InvalidValueError):
                    await jobs.add(text, 1)
                continue
            await jobs.add(text, {text: [text]}, id=text)
            used += 1
        assert used > 300
        for text in strings:
            if not is_name(text):
                continue
            [claim] = await jobs.claim(text, limit=5)
            assert (text, {text: [text]}) == (claim.job.id, claim.job.data)
            await jobs.complete(claim, text)
            job = await jobs.get(text, text)
            assert job is not None
            assert ("completed", text) == (job.status, job.return_value)

    async def test_every_json_text_is_kept_or_refused(
        self, json_files: list[tuple[str, bytes]]
    ) -> None:
        """What Python reads from it comes back equal, or is refused at the call."""
        kept = 0
        for name, text in json_files:
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                continue
            try:
                job = await self.storage.jobs.add("texts", value)
            except InvalidValueError:
                assert not name.startswith("y_") or "surrogate" in name or "null" in name, name
                continue
            kept += 1
            read = await self.storage.jobs.get("texts", job.id)
            assert read is not None
            assert same(value, read.data), name
        assert kept > 80


class TestMemoryPayloads(MemoryMode, WebhookTests, TextTests):
    """In memory mode."""


class TestRedisTexts(TextTests):
    """Redis serves both planes."""

    mode = "redis"

    @pytest.fixture(autouse=True)
    def _servers(self, redis_url: str) -> None:
        self._sections = {"redis": {"url": redis_url}}

    def settings(self) -> dict[str, Any]:
        """Point at the server of the run."""
        return self._sections


class TestRedisPostgresTexts(TextTests):
    """Redis is hot, PostgreSQL is durable."""

    mode = "redis-postgres"

    @pytest.fixture(autouse=True)
    def _servers(self, redis_url: str, postgres_url: str) -> None:
        self._sections = {
            "redis": {"url": redis_url},
            "postgres": {"url": postgres_url, "create_schema": True},
        }

    def settings(self) -> dict[str, Any]:
        """Point at the servers of the run."""
        return self._sections


class TestSqliteTexts(TextTests):
    """One file serves both planes."""

    mode = "sqlite"

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        self._sections = {"sqlite": {"path": str(tmp_path / "oqron.db")}}

    def settings(self) -> dict[str, Any]:
        """Use a file of the test's own."""
        return self._sections
