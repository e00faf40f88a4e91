"""The ``oqron`` commands for topics, schedules, locks, cache, limits, logs and retention."""

from __future__ import annotations

import asyncio
import json
import os

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from click.testing import CliRunner, Result

from oqron_core import Settings, Storage, load_settings, open_storage
from oqron_core._plugins import Plugins
from oqron_core.cli._app import cli
from oqron_core.cli._invocation import Invocation
from oqron_core.testing.clock import ManualClock
from oqron_memory import MemoryStore


Invoke = Callable[..., Result]
Within = Callable[[Callable[[Storage], Awaitable[Any]]], Any]


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder without settings of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("OQRON_") and not name.startswith("OQRON_TEST_"):
            monkeypatch.delenv(name)


@pytest.fixture
def clock() -> ManualClock:
    """Give the clock of the store."""
    return ManualClock()


@pytest.fixture
def settings(clock: ManualClock) -> Settings:
    """Give settings whose store outlives the storages that are opened with them."""
    return load_settings(mode="memory", memory={"store": MemoryStore(clock=clock)})


@pytest.fixture
def invoke(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run the command on the store that the test works on too."""

    def given(_self: Invocation, _plugins: Plugins, *, project: str | None = None) -> Settings:
        assert project is None
        return settings

    monkeypatch.setattr(Invocation, "settings", given)

    def run(*args: str, **options: Any) -> Result:
        return CliRunner().invoke(cli, list(args), **options)

    return run


@pytest.fixture
def within(settings: Settings) -> Within:
    """Do something in a storage on the same store, as the application would."""

    def run(work: Callable[[Storage], Awaitable[Any]]) -> Any:
        async def opened() -> Any:
            async with open_storage(settings) as storage:
                return await work(storage)

        return asyncio.run(opened())

    return run


def document(result: Result) -> Any:
    """Give what stood on standard output, which must be one JSON document."""
    assert 0 == result.exit_code, result.stderr

    return json.loads(result.stdout)


def one_line(result: Result) -> str:
    """Give the one line that stood on standard error."""
    lines = [line for line in result.stderr.splitlines() if "lives in this process" not in line]

    assert 1 == len(lines), result.stderr
    assert lines[0].startswith("oqron: ")
    return lines[0]


# --- all of them --------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        ["queues"],
        ["topics", "list"],
        ["topics", "groups", "t"],
        ["topics", "publish", "t", "[1]"],
        ["topics", "read", "t"],
        ["topics", "lag", "t"],
        ["schedules", "list"],
        ["schedules", "due"],
        ["locks", "show", "k"],
        ["locks", "leader", "maintenance"],
        ["cache", "invalidate-tag", "a", "b"],
        ["limits", "peek", "k"],
        ["limits", "peek", "k", "--limit", "5", "--per", "1m"],
        ["limits", "ban", "k", "15m"],
        ["logs", "list"],
        ["logs", "show", "m"],
        ["retention", "show"],
        ["retention", "set", "job", "--keep", "3"],
        ["retention", "preview"],
    ],
    ids=" ".join,
)
def test_json_is_the_only_thing_on_standard_output(invoke: Invoke, args: list[str]) -> None:
    """Notes go to standard error; without --json the same command works too."""
    assert isinstance(document(invoke(*args, "--json")), dict)
    assert 0 == invoke(*args).exit_code


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["topics", "publish", "t", "{"], "no JSON"),
        (["topics", "publish", "t", "1", "--header", "x"], "NAME=TEXT"),
        (["topics", "publish", "", "1"], "must not be empty"),
        (["topics", "read", "t", "--after", "nonsense"], "cursor"),
        (["topics", "replay", "t", "g", "--since", "1h", "--from-message", "x"], "leave one"),
        (["topics", "replay", "t", "g", "--since", "yesterday"], "15m"),
        (["schedules", "show", "chron", "x"], "cron"),
        (["schedules", "list", "--after", "nonsense"], "no cursor"),
        (["schedules", "list", "--kind", "schedule", "--after", "cron:"], "no cursor"),
        (["limits", "peek", "k", "--limit", "5"], "belong together"),
        (["limits", "peek", "k", "--limit", "0", "--per", "1m"], "from 1"),
        (["limits", "peek", "k", "--limit", "5", "--per", "1m", "--burst", "2"], "token bucket"),
        (["limits", "ban", "k", "soon"], "12h"),
        (["limits", "ban", "k", "0"], "0.001"),
        (["logs", "show", "m", "--level", "loud"], "warning"),
        (["retention", "set", "job"], "--keep-for"),
        (["retention", "set", "job", "--keep", "-1"], "at least 0"),
        (["retention", "set", "job", "runs", "--keep", "1"], "no records of the kind job"),
        (["retention", "set", "control", "--keep", "1"], "dlq"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_status_2_and_one_line(invoke: Invoke, args: list[str], says: str) -> None:
    """Whoever asked wrongly reads one sentence, with the mend."""
    result = invoke(*args)

    assert 2 == result.exit_code, result.stderr
    assert says in one_line(result)
    assert "" == result.stdout


@pytest.mark.parametrize(
    "args",
    [
        ["topics", "lag", "t", "absent"],
        ["topics", "replay", "t", "absent"],
        ["topics", "pause", "t", "absent"],
        ["topics", "resume", "t", "absent"],
        ["schedules", "show", "cron", "absent"],
        ["schedules", "pause", "cron", "absent"],
        ["schedules", "resume", "cron", "absent"],
        ["cache", "get", "absent"],
        ["cache", "delete", "absent"],
        ["limits", "unban", "absent"],
        ["limits", "reset", "absent"],
        ["retention", "unset", "job", "queue_job:absent"],
    ],
    ids=" ".join,
)
def test_what_is_not_there_is_status_1_and_named(invoke: Invoke, args: list[str]) -> None:
    """A name that was mistyped does not look like success."""
    result = invoke(*args)

    assert 1 == result.exit_code
    assert "absent" in one_line(result)


@pytest.mark.parametrize(
    "group",
    ["topics", "schedules", "locks", "cache", "limits", "logs", "retention"],
)
def test_a_group_without_a_command_shows_its_help(invoke: Invoke, group: str) -> None:
    """Who does not know what to type is told."""
    assert "Commands:\n" in invoke(group).output


# --- queues --------------------------------------------------------------------------


def test_queues_shows_jobs_dead_letters_and_pauses_in_one_line_each(
    invoke: Invoke, within: Within
) -> None:
    """Every queue is there, also one that holds only a dead letter or a pause."""

    async def work(storage: Storage) -> None:
        await storage.jobs.add_many("emails", [1, 2, 3])
        [claim] = await storage.jobs.claim("emails")
        await storage.jobs.complete(claim)
        await storage.jobs.add("reports", 1, max_attempts=1)
        [claim] = await storage.jobs.claim("reports")
        await storage.jobs.fail(claim, "no paper")
        await storage.controls.pause("queue", "mails", behaviour="hold", reason="new relay")
        await storage.jobs.add("mails", 1)
        await storage.topics.subscribe("events", "audit")
        await storage.topics.publish("events", 1)

    within(work)

    items = document(invoke("queues", "--json"))["items"]
    rows = invoke("queues").stdout.splitlines()

    assert ["emails", "mails", "reports"] == [item["queueName"] for item in items]
    assert (2, 1, 0) == tuple(items[0][name] for name in ("waiting", "completed", "dead"))
    assert (1, True, "hold", "new relay") == tuple(
        items[1][name] for name in ("held", "paused", "behaviour", "reason")
    )
    assert (0, 1, False) == tuple(items[2][name] for name in ("waiting", "dead", "paused"))
    assert 4 == len(rows)
    assert rows[2].endswith("paused (hold): new relay")


def test_a_queue_that_was_resumed_is_not_shown_as_paused(invoke: Invoke, within: Within) -> None:
    """The record of a pause that is over stays, and means nothing here."""

    async def work(storage: Storage) -> None:
        await storage.jobs.add("emails", 1)
        await storage.jobs.pause("emails")
        await storage.jobs.resume("emails")

    within(work)

    [item] = document(invoke("queues", "--json"))["items"]

    assert not item["paused"]


# --- topics --------------------------------------------------------------------------


def test_a_message_is_published_listed_read_and_counted(invoke: Invoke, within: Within) -> None:
    """The message comes back as it was typed, and waits for each group."""

    async def subscribe(storage: Storage) -> None:
        await storage.topics.subscribe("orders", "mail")
        await storage.topics.subscribe("orders", "audit", max_attempts=7)

    within(subscribe)
    message = {"n": [1, 1.5, None, {}], "who": "zoë"}

    done = document(
        invoke(
            "topics", "publish", "orders", json.dumps(message), "--key", "k",
            "--header", "from=shell", "--header", "empty=", "--json",
        )
    )  # fmt: skip
    read = document(invoke("topics", "read", "orders", "--json"))
    listed = document(invoke("topics", "list", "--json"))
    groups = document(invoke("topics", "groups", "orders", "--json"))["items"]
    lag = document(invoke("topics", "lag", "orders", "audit", "--json"))

    assert not done.pop("duplicate")
    assert [done] == read["items"]
    assert json.dumps(message) == json.dumps(done["message"])
    assert ("k", {"from": "shell", "empty": ""}) == (done["key"], done["headers"])
    assert [{"topic": "orders", "groups": 2, "messages": 1}] == listed["items"]
    assert [("audit", 7, 1, 0), ("mail", 3, 1, 0)] == [
        (one["name"], one["maxAttempts"], one["lag"], one["dead"]) for one in groups
    ]
    assert [{"group": "audit", "lag": 1}] == lag["items"]


def test_a_topic_without_groups_is_listed(invoke: Invoke) -> None:
    """Its messages wait in the log for whoever subscribes from the beginning."""
    invoke("topics", "publish", "orders", "-", input="[1]")

    listed = document(invoke("topics", "list", "--json"))

    assert [{"topic": "orders", "groups": 0, "messages": 1}] == listed["items"]


def test_a_second_message_of_an_idempotency_key_says_so(invoke: Invoke) -> None:
    """It is safe to repeat, so it is no failure."""
    first = document(invoke("topics", "publish", "t", "1", "--idempotency-key", "a", "--json"))

    result = invoke("topics", "publish", "t", "2", "--idempotency-key", "a", "--json")

    assert document(result)["duplicate"]
    assert (first["id"], 1) == (document(result)["id"], document(result)["message"])
    assert "already" in result.stderr


def test_the_log_of_a_topic_goes_on_where_the_page_before_ended(invoke: Invoke) -> None:
    """The cursor of a page is what --after takes."""
    for number in range(3):
        invoke("topics", "publish", "t", str(number))

    first = document(invoke("topics", "read", "t", "--limit", "2", "--json"))
    second = document(invoke("topics", "read", "t", "--after", first["next"], "--json"))

    assert [0, 1, 2] == [one["message"] for one in first["items"] + second["items"]]
    assert second["next"] is None


def test_a_replay_delivers_again_from_where_it_is_told(
    invoke: Invoke, within: Within, clock: ManualClock
) -> None:
    """By an instant or a message, besides what is there already."""

    async def work(storage: Storage) -> list[str]:
        await storage.topics.subscribe("t", "g")
        ids = []
        for number in range(3):
            ids.append((await storage.topics.publish("t", number)).id)
            clock.advance(1.0)
        for claim in await storage.topics.claim("t", "g", limit=3):
            await storage.topics.complete(claim)
        return ids

    start = clock.now()
    ids = within(work)

    def replayed(*args: str) -> int:
        return int(document(invoke("topics", "replay", "t", "g", *args, "--json"))["replayed"])

    assert 3 == replayed()
    assert 2 == replayed("--from-message", ids[1])
    assert 2 == replayed("--since", str(start + 1000))
    assert 1 == replayed("--since", str(start + 1000), "--until", str(start + 1000))
    assert 0 == replayed("--since", "2999-01-01")


def test_a_paused_group_is_handed_nothing_until_it_is_resumed(
    invoke: Invoke, within: Within
) -> None:
    """Messages go on arriving, and the listing shows the pause."""

    async def claim(storage: Storage) -> int:
        return len(await storage.topics.claim("t", "g", limit=10))

    within(lambda storage: storage.topics.subscribe("t", "g"))
    paused = document(invoke("topics", "pause", "t", "g", "--reason", "deploy", "--json"))
    invoke("topics", "publish", "t", "1")

    assert (True, "deploy", "g") == (paused["paused"], paused["reason"], paused["group"])
    assert 0 == within(claim)
    [listed] = document(invoke("topics", "groups", "t", "--json"))["items"]
    assert (1, True) == (listed["lag"], listed["paused"])
    assert "g of t is open\n" == invoke("topics", "resume", "t", "g").stdout
    assert 1 == within(claim)


def test_dead_deliveries_of_a_group_are_counted_with_it(invoke: Invoke, within: Within) -> None:
    """They are found again by the name of the queue that stands beside the count."""

    async def work(storage: Storage) -> None:
        await storage.topics.subscribe("t", "g", max_attempts=1)
        await storage.topics.publish("t", 1)
        [claim] = await storage.topics.claim("t", "g")
        await storage.topics.fail(claim, "no")

    within(work)

    [group] = document(invoke("topics", "groups", "t", "--json"))["items"]
    letters = document(invoke("dlq", "list", group["deliveryQueue"], "--json"))["items"]

    assert (0, 1) == (group["lag"], group["dead"])
    assert 1 == len(letters)


# --- schedules -----------------------------------------------------------------------


@pytest.fixture
def some_schedules(within: Within, clock: ManualClock) -> None:
    """Define three crons and two schedules, the first of each of them due."""

    async def work(storage: Storage) -> None:
        for number in range(3):
            at = clock.now() - 1000 + number * 60_000
            await storage.schedules.put(
                "cron", f"c{number}", next_run_at=at, spec={"cron": "0 3 * * *"}, zone="UTC"
            )
        for number in range(2):
            at = clock.now() - 2000 + number * 60_000
            await storage.schedules.put("schedule", f"s{number}", next_run_at=at)

    within(work)


@pytest.mark.usefixtures("some_schedules")
@pytest.mark.parametrize("limit", range(1, 7))
def test_pages_of_schedules_go_over_both_kinds_and_miss_none(invoke: Invoke, limit: int) -> None:
    """Wherever a page ends, also between the kinds."""
    seen: list[str] = []
    after: list[str] = []
    while True:
        page = document(invoke("schedules", "list", "--limit", str(limit), *after, "--json"))
        assert len(page["items"]) <= limit
        seen.extend(one["name"] for one in page["items"])
        if page["next"] is None:
            break
        after = ["--after", page["next"]]

    assert ["c0", "c1", "c2", "s0", "s1"] == seen


@pytest.mark.usefixtures("some_schedules")
def test_due_shows_the_oldest_slot_first(invoke: Invoke) -> None:
    """Of both kinds, or of one."""
    both = document(invoke("schedules", "due", "--json"))["items"]
    crons = document(invoke("schedules", "due", "--kind", "cron", "--json"))["items"]

    assert ["s0", "c0"] == [one["name"] for one in both]
    assert ["c0"] == [one["name"] for one in crons]


@pytest.mark.usefixtures("some_schedules")
def test_a_paused_schedule_is_not_due_until_it_is_resumed(invoke: Invoke) -> None:
    """The listing can be narrowed to what is paused."""
    paused = document(
        invoke("schedules", "pause", "cron", "c0", "--behaviour", "skip", "--reason", "x", "--json")
    )
    listed = document(invoke("schedules", "list", "--paused", "--json"))["items"]
    shown = document(invoke("schedules", "show", "cron", "c0", "--json"))
    due = document(invoke("schedules", "due", "--kind", "cron", "--json"))["items"]

    assert (True, "skip", "x") == (paused["paused"], paused["behaviour"], paused["reason"])
    assert ["c0"] == [one["name"] for one in listed]
    assert shown["paused"]
    assert [] == due
    assert "cron c0 is on\n" == invoke("schedules", "resume", "cron", "c0").stdout
    assert [] == document(invoke("schedules", "list", "--paused", "--json"))["items"]


@pytest.mark.usefixtures("some_schedules")
def test_a_schedule_is_shown_with_its_spec_and_zone(invoke: Invoke) -> None:
    """What a person asks about a cron fits one screen."""
    text = invoke("schedules", "show", "cron", "c1").stdout

    assert '{"cron": "0 3 * * *"}' in text
    assert "catch-up  one" in text


# --- locks ---------------------------------------------------------------------------


def test_the_holder_of_a_lock_is_shown_with_its_token_and_time(
    invoke: Invoke, settings: Settings, clock: ManualClock
) -> None:
    """A lock that is free is an answer, not a failure."""

    async def held() -> int:
        async with open_storage(settings) as storage:
            lease = await storage.locks.acquire("invoice:42", lease_for=30.0)
            assert lease is not None
            return lease.token

    token = asyncio.run(held())
    clock.advance(10.0)
    found = document(invoke("locks", "show", "invoice:42", "--json"))
    clock.advance(30.0)
    free = document(invoke("locks", "show", "invoice:42", "--json"))

    assert (True, token, 20.0) == (found["held"], found["token"], found["remaining"])
    assert found["owner"]
    assert (False, None) == (free["held"], free["owner"])
    assert "invoice:42 is free\n" == invoke("locks", "show", "invoice:42").stdout


def test_the_leader_is_shown_while_somebody_leads(invoke: Invoke, within: Within) -> None:
    """The term is its token."""

    async def work(storage: Storage) -> tuple[int, Result]:
        async with storage.locks.lead("report") as lead:
            found = await asyncio.to_thread(invoke, "locks", "leader", "report", "--json")
            return lead.term, found

    term, found = within(work)

    assert (True, term) == (document(found)["held"], document(found)["term"])
    assert "report is led by nobody\n" == invoke("locks", "leader", "report").stdout


# --- cache ---------------------------------------------------------------------------


def test_a_cached_value_is_shown_and_deleted(invoke: Invoke, within: Within) -> None:
    """None is a value; what has gone is status 1."""

    async def work(storage: Storage) -> None:
        await storage.cache.set("a", {"x": [1, "ü\x1b"]}, ttl=60.0)
        await storage.cache.set("none", None, ttl=None)

    within(work)

    shown = document(invoke("cache", "get", "a", "--json"))
    text = invoke("cache", "get", "a").stdout
    none = document(invoke("cache", "get", "none", "--json"))
    deleted = invoke("cache", "delete", "a", "gone", "--json")

    assert {"key": "a", "value": {"x": [1, "ü\x1b"]}} == shown
    assert "\x1b" not in text
    assert shown["value"] == json.loads(text)
    assert none["value"] is None
    assert [True, False] == [one["deleted"] for one in json.loads(deleted.stdout)["items"]]
    assert (1, True) == (deleted.exit_code, "gone" in one_line(deleted))
    assert 1 == invoke("cache", "get", "a").exit_code


def test_a_tag_takes_all_its_values_with_it(invoke: Invoke, within: Within) -> None:
    """What has another tag stays."""

    async def work(storage: Storage) -> None:
        await storage.cache.set_many({"a": 1, "b": 2}, ttl=60.0, tags=["users"])
        await storage.cache.set("c", 3, ttl=60.0, tags=["prices"])

    within(work)

    invoke("cache", "invalidate-tag", "users")

    assert [1, 1, 0] == [invoke("cache", "get", key).exit_code for key in "abc"]


# --- limits --------------------------------------------------------------------------


def test_a_key_is_banned_seen_and_let_in_again(invoke: Invoke, clock: ManualClock) -> None:
    """The ban has a reason and an end, and peek shows both."""
    ban = document(invoke("limits", "ban", "ip", "15m", "--reason", "abuse", "--json"))["ban"]
    clock.advance(60.0)
    args = ["limits", "peek", "ip", "--limit", "5", "--per", "60", "--json"]
    seen = document(invoke(*args))
    unbanned = document(invoke("limits", "unban", "ip", "--json"))
    after = document(invoke(*args))

    assert (900.0, "abuse") == (ban["remaining"], ban["reason"])
    assert (840.0, False) == (seen["ban"]["remaining"], seen["decision"]["allowed"])
    assert unbanned["unbanned"]
    assert (None, 5) == (after["ban"], after["decision"]["remaining"])


@pytest.mark.parametrize(
    ("how", "more"),
    [("fixed-window", []), ("sliding-window", []), ("token-bucket", ["--burst", "5"])],
)
def test_peek_takes_nothing_and_reset_forgets(
    invoke: Invoke, within: Within, how: str, more: list[str]
) -> None:
    """Each type of limit is asked as the application asks it."""
    from oqron_core import FixedWindow, SlidingWindow, TokenBucket

    limit = {
        "fixed-window": FixedWindow(5, per=3600.0),
        "sliding-window": SlidingWindow(5, per=3600.0),
        "token-bucket": TokenBucket(100, per=1e6, burst=5),
    }[how]
    within(lambda storage: storage.limits.take("ip", limit, cost=3))
    given = ["--limit", str(limit.limit), "--per", f"{limit.per:.0f}", "--type", how, *more]

    def left() -> int:
        found = document(invoke("limits", "peek", "ip", *given, "--json"))
        return int(found["decision"]["remaining"])

    assert [2, 2] == [left(), left()]
    assert document(invoke("limits", "reset", "ip", "--json"))["reset"]
    assert 5 == left()


# --- logs ----------------------------------------------------------------------------


def test_the_log_of_a_module_is_shown_by_level_and_time(
    invoke: Invoke, within: Within, clock: ManualClock
) -> None:
    """The newest lines are in front, and the cursor goes on."""

    async def work(storage: Storage) -> None:
        for level in ("debug", "info", "error"):
            storage.logs.write("mail", level, f"a {level}\x1b line", to="a@x.com")
            await storage.logs.flush()
            clock.advance(60.0)
        storage.logs.write("web", "info", "x")

    start = clock.now()
    within(work)

    def levels(*args: str) -> list[str]:
        found = document(invoke("logs", "show", "mail", *args, "--json"))["items"]
        return [one["level"] for one in found]

    first = document(invoke("logs", "show", "mail", "--limit", "2", "--json"))
    assert ["error", "info", "debug"] == levels()
    assert ["error", "info"] == levels("--level", "info")
    assert ["error"] == levels("--since", str(start + 90_000))
    assert ["debug"] == levels("--after", first["next"])
    assert {"to": "a@x.com"} == first["items"][0]["fields"]
    assert [("mail", 3), ("web", 1)] == [
        (one["module"], one["lines"]) for one in document(invoke("logs", "list", "--json"))["items"]
    ]
    assert "\x1b" not in invoke("logs", "show", "mail").stdout


# --- retention -----------------------------------------------------------------------


def test_a_rule_is_set_shown_previewed_and_unset(invoke: Invoke, within: Within) -> None:
    """The preview says what a prune then deletes."""

    async def work(storage: Storage) -> None:
        await storage.jobs.add_many("emails", list(range(5)))
        pairs = [(claim, None) for claim in await storage.jobs.claim("emails", limit=5)]
        await storage.jobs.complete_many(pairs)

    within(work)

    rule = document(
        invoke("retention", "set", "job", "queue_job:emails", "--keep-for", "12h", "--keep", "3",
               "--json")
    )  # fmt: skip
    shown = document(invoke("retention", "show", "--json"))
    preview = document(invoke("retention", "preview", "--json"))
    dry = document(invoke("prune", "--dry-run", "--json"))
    pruned = document(invoke("prune", "--json"))
    unset = document(invoke("retention", "unset", "job", "queue_job:emails", "--json"))

    assert (43200.0, 3) == (rule["keepFor"], rule["keep"])
    assert [rule] == shown["rules"]
    assert (86400.0, 604800.0) == (
        shown["settings"]["completedFor"],
        shown["settings"]["messagesFor"],
    )
    [item] = preview["items"]
    assert ("job", "queue_job:emails", 2) == (item["kind"], item["namespace"], item["records"])
    assert preview == {name: dry[name] for name in ("items", "records", "bytes")}
    assert {"records": 2, "bytes": item["bytes"]} == dry["kinds"]["job"]
    assert 2 == pruned["pruned"]
    assert unset["unset"]
    assert [] == document(invoke("retention", "show", "--json"))["rules"]


def test_what_expired_alone_in_its_namespace_is_previewed_without_a_name(
    invoke: Invoke, within: Within, clock: ManualClock
) -> None:
    """It is counted all the same, and both outputs say so."""

    async def work(storage: Storage) -> None:
        await storage.jobs.add("q", 1, id="a")
        await storage.jobs.cancel("q", "a")

    within(work)
    clock.advance(8 * 86400.0)

    [item] = document(invoke("retention", "preview", "--json"))["items"]
    text = invoke("prune", "--dry-run").stdout

    assert ("job", None, 1) == (item["kind"], item["namespace"], item["records"])
    assert "(others)" in text


# --- on a server ---------------------------------------------------------------------


def test_what_one_command_did_the_next_one_sees(
    redis_url: str, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a server each command is a storage of its own, and the state is shared."""
    monkeypatch.setenv("OQRON_MODE", "redis")
    monkeypatch.setenv("OQRON_REDIS__URL", redis_url)
    monkeypatch.setenv("OQRON_PROJECT", project)

    def run(*args: str) -> Any:
        return document(CliRunner().invoke(cli, [*args, "--json"]))

    async def work() -> None:
        async with open_storage(mode="redis", project=project, redis={"url": redis_url}) as storage:
            await storage.topics.subscribe("t", "g")
            await storage.schedules.put("cron", "c", next_run_at=1000)
            await storage.cache.set("k", [1], ttl=60.0, tags=["x"])
            await storage.locks.acquire("l", lease_for=60.0)
            storage.logs.write("m", "info", "hello")
            await storage.jobs.add("q", 1)

    asyncio.run(work())
    run("topics", "publish", "t", "1")
    run("topics", "pause", "t", "g")
    run("schedules", "pause", "cron", "c")
    run("limits", "ban", "ip", "1h")
    run("retention", "set", "run", "--keep", "10")

    assert [True] == [one["paused"] for one in run("topics", "groups", "t")["items"]]
    assert [1] == [one["lag"] for one in run("topics", "lag", "t")["items"]]
    assert [True] == [one["paused"] for one in run("schedules", "list")["items"]]
    assert run("locks", "show", "l")["held"]
    assert [1] == run("cache", "get", "k")["value"]
    assert 3500 < run("limits", "peek", "ip")["ban"]["remaining"] <= 3600
    assert ["hello"] == [one["msg"] for one in run("logs", "show", "m")["items"]]
    assert [10] == [one["keep"] for one in run("retention", "show")["rules"]]
    assert ["q"] == [one["queueName"] for one in run("queues")["items"]]
    run("cache", "invalidate-tag", "x")
    assert 1 == CliRunner().invoke(cli, ["cache", "get", "k"]).exit_code
