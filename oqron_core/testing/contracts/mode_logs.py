"""The contract of `Storage.logs` in a mode: behind the work, capped, in order."""

from __future__ import annotations

import logging
import threading

from typing import Any

import pytest

from oqron_core.exceptions import ClosedError, InvalidValueError, UnavailableError
from oqron_core.planes import Query, encode
from oqron_core.storage import Storage
from oqron_core.taxonomy import RecordKind
from oqron_core.testing.contracts.services import ServiceContract
from oqron_core.testing.faults import Faults, When
from oqron_core.testing.hostile import BAD_NAMES, BAD_VALUES, NAMES, VALUES, same


__all__ = ["ModeLogsContract"]


class ModeLogsContract(ServiceContract):
    """What module logs must do in every mode."""

    async def lines(self, module: str = "m", **options: Any) -> list[str]:
        """Read the texts of a module, the newest in front."""
        return [line.msg for line in await self.storage.logs.query(module, **options)]

    async def test_what_is_written_is_read_the_newest_in_front(self) -> None:
        """With its level, its fields and the plane's time."""
        before = await self.storage.durable.now()
        self.storage.logs.write("m", "info", "first", job="a", module="mine", level=3)
        self.storage.logs.write("m", "error", "second")
        self.storage.logs.write("other", "info", "third")
        page = await self.storage.logs.query("m")
        after = await self.storage.durable.now()
        second, first = page.items

        assert ("second", "error", {}) == (second.msg, second.level, second.fields)
        assert ("first", "info", "m") == (first.msg, first.level, first.module)
        assert {"job": "a", "module": "mine", "level": 3} == first.fields
        # The line was timed here, by the plane's clock as far as it is known here.
        assert before - 1000 <= first.ts <= second.ts <= after + 1000
        assert {"m": 2, "other": 1} == await self.storage.logs.modules()

    async def test_writing_costs_no_round_trip(self) -> None:
        """A background writer stores what waits, in batches."""
        self.faults.reset()
        for number in range(1000):
            self.storage.logs.write("m", "info", f"line {number}")
        assert [] == self.faults.names()
        await self.storage.logs.flush()
        assert len(self.faults.names("durable.write")) <= 3

        texts = await self.lines(limit=1000)
        assert [f"line {number}" for number in reversed(range(1000))] == texts

    async def test_the_writer_needs_no_flush(self) -> None:
        """What is written appears by itself."""
        self.storage.logs.write("m", "info", "by itself")
        query = Query(namespace="module_logs:m")
        while not await self.storage.durable.count(query):
            await self.settle()

        assert ["by itself"] == await self.lines()

    async def test_a_line_is_a_record_of_a_log(self) -> None:
        """In the namespace of the model, with an expiry."""
        self.storage.logs.write("m", "info", "x")
        await self.storage.logs.flush()
        [record] = (await self.storage.durable.query(Query(kind=RecordKind.LOG))).items

        assert "module_logs:m" == record.namespace
        assert {"id", "module", "level", "msg", "ts", "fields"} == set(record.value)
        assert record.expires_at is not None
        assert 7 * 86_400_000 == record.expires_at - record.value["ts"]

    async def test_lines_are_chosen_by_level_and_time(self) -> None:
        """A level includes those above it, an instant itself."""
        for level in ("debug", "info", "warning", "error"):
            self.storage.logs.write("m", level, level)
        assert ["error", "warning"] == await self.lines(level="warning")
        assert 4 == len(await self.lines(level="debug"))
        await self.elapse(0.2)
        since = await self.storage.durable.now()
        await self.elapse(0.2)
        self.storage.logs.write("m", "info", "late")

        assert ["late"] == await self.lines(since=since)
        assert 5 == len(await self.lines(since=0))

    async def test_pages_neither_skip_nor_repeat(self) -> None:
        """Also while more is written."""
        for number in range(25):
            self.storage.logs.write("m", "info", str(number))
        seen: list[str] = []
        after = None
        while True:
            page = await self.storage.logs.query("m", limit=10, after=after)
            seen += [line.msg for line in page]
            self.storage.logs.write("m", "info", "more")
            if (after := page.next) is None:
                break

        assert [str(number) for number in reversed(range(25))] == seen

    async def test_anything_may_be_logged(self) -> None:
        """What is not portable becomes text, and a long text is cut."""
        for value in (*VALUES, *BAD_VALUES):
            self.storage.logs.write("m", "info", value, value=value)
        self.storage.logs.write("m", "info", "x" * 20_000)
        self.storage.logs.write("m", "info", "a\0b\ud800")
        page = await self.storage.logs.query("m", limit=10_000)

        assert len(VALUES) + len(BAD_VALUES) + 2 == len(page)
        assert "a\ufffdb\ufffd" == page.items[0].msg
        assert page.items[1].msg.startswith("x" * 10_000 + "…")
        kept = [line.fields["value"] for line in reversed(page.items[2:])]
        for value, found in zip(VALUES, kept, strict=False):
            if self._as_it_is(value):
                assert same(value, found)
            else:
                assert isinstance(found, str)

    def _as_it_is(self, value: Any) -> bool:
        try:
            encode({"value": value}, max_bytes=10_000)
        except InvalidValueError:
            return False
        return True

    async def test_every_legal_name_is_a_module(self) -> None:
        """And none meets another."""
        for name in NAMES:
            self.storage.logs.write(name, "info", name)

        for name in NAMES:
            assert [name] == await self.lines(name)

    async def test_threads_may_write(self) -> None:
        """Nothing is lost, and each thread's lines stay in order."""

        def work(number: int) -> None:
            for step in range(200):
                self.storage.logs.write("m", "info", f"{number}", step=step)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        page = await self.storage.logs.query("m", limit=10_000)

        assert 800 == len(page)
        for number in range(4):
            steps = [line.fields["step"] for line in page if line.msg == str(number)]
            assert [*reversed(range(200))] == steps

    # --- trouble -----------------------------------------------------------------------

    async def test_a_plane_that_is_down_loses_nothing(self) -> None:
        """What waits is written once when it is back, also where an answer was lost."""
        self.faults.fail("durable.write", when="after")
        self.storage.logs.write("m", "info", "one")
        with pytest.raises(UnavailableError):
            await self.storage.logs.flush()
        self.storage.logs.write("m", "info", "two")
        self.faults.down("durable.write")
        with pytest.raises(UnavailableError):
            await self.lines()
        self.faults.heal()

        assert ["two", "one"] == await self.lines()

    async def test_where_too_much_waits_the_oldest_go(self) -> None:
        """And are counted; the newest are kept."""
        self.faults.down("durable.write")
        for number in range(10_100):
            self.storage.logs.write("m", "info", str(number))
        assert 100 == self.storage.logs.dropped
        self.faults.heal()

        assert "10099" == (await self.lines(limit=1))[0]
        assert {"m": 10_000} == await self.storage.logs.modules()

    async def test_closing_writes_what_waits(self) -> None:
        """Afterwards nothing is taken any more."""
        async with self.open() as other:
            for number in range(700):
                other.logs.write("m", "info", str(number))

        assert {"m": 700} == await self.storage.logs.modules()
        with pytest.raises(ClosedError):
            other.logs.write("m", "info", "late")

    async def test_closing_a_plane_that_is_down_ends_and_counts(self) -> None:
        """Within the time that closing may take."""
        faults = Faults()
        async with self.open(faults) as other:
            faults.down("durable.write")
            other.logs.write("m", "info", "lost")
            assert 1 == await other.logs.close(0.05)

    @pytest.mark.parametrize("when", ["before", "after"])
    async def test_a_process_that_dies_leaves_whole_lines(self, when: When) -> None:
        """What it had not written is lost; nothing is there twice or in part."""

        async def write(doomed: Storage) -> None:
            for number in range(3):
                doomed.logs.write("m", "info", str(number))
            await doomed.logs.flush()

        await self.die("durable.write", when, write)
        self.storage.logs.write("m", "info", "later")

        expected = ["0", "1", "2", "later"] if when == "after" else ["later"]
        # Lines of two processes in one millisecond have no order.
        assert expected == sorted(await self.lines())

    # --- caps ---------------------------------------------------------------------------

    async def test_a_module_keeps_about_as_many_lines_as_it_may(self) -> None:
        """The oldest are pruned as new ones come, and no other module is touched."""
        self.storage.logs.keep("m", max_entries=100)
        for _ in range(20):
            for number in range(50):
                self.storage.logs.write("m", "info", str(number))
                self.storage.logs.write("other", "info", str(number))
            await self.storage.logs.flush()
        counts = await self.storage.logs.modules()

        assert 100 <= counts["m"] <= 160
        assert 1000 == counts["other"]
        assert [str(n) for n in reversed(range(50))] == await self.lines(limit=50)

    async def test_pruning_leaves_the_newest(self) -> None:
        """As many as were asked for, in bounded steps."""
        for number in range(2500):
            self.storage.logs.write("m", "info", str(number))
        assert 2490 == await self.storage.logs.prune("m", max_entries=10)
        assert 0 == await self.storage.logs.prune("m", max_entries=10)
        assert [str(n) for n in reversed(range(2490, 2500))] == await self.lines()

        assert 10 == await self.storage.logs.prune("m", max_entries=0)
        assert {} == await self.storage.logs.modules()

    async def test_lines_expire(self) -> None:
        """After the time that the module keeps them."""
        self.storage.logs.keep("m", keep_for=self.moment)
        self.storage.logs.write("m", "info", "short")
        assert ["short"] == await self.lines()
        await self.pass_moment()

        assert [] == await self.lines()

    # --- logging ------------------------------------------------------------------------------

    async def test_the_handler_carries_records(self) -> None:
        """With their level and origin; those of oqron itself are left out."""
        logger = logging.getLogger("app.mail")
        handler = self.storage.logs.handler("mail")
        own = logging.getLogger("oqron.protocol")
        logger.addHandler(handler)
        own.addHandler(handler)
        logger.setLevel(logging.DEBUG)
        try:
            logger.debug("too little")
            logger.info("sent to %s", "a@x.com")
            try:
                raise KeyError("no")  # noqa: TRY301 - to be logged
            except KeyError:
                logger.exception("failed")
            own.error("about storage itself")
        finally:
            logger.removeHandler(handler)
            own.removeHandler(handler)
            logger.setLevel(logging.NOTSET)
        failed, sent = (await self.storage.logs.query("mail")).items

        assert ("sent to a@x.com", "info", "app.mail") == (
            sent.msg, sent.level, sent.fields["logger"],
        )  # fmt: skip
        assert ("error", "KeyError") == (failed.level, failed.fields["error"])
        assert failed.msg.startswith("failed\nTraceback")

    async def test_the_handler_never_fails_the_work(self) -> None:
        """Also after the storage was closed."""
        async with self.open() as other:
            handler = other.logs.handler("mail")
        handler.handle(logging.makeLogRecord({"name": "app", "levelno": logging.INFO, "msg": "x"}))

        assert {} == await self.storage.logs.modules()

    # --- refusals ---------------------------------------------------------------------------

    @pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
    async def test_a_bad_module_is_refused(self, name: Any) -> None:
        """In every call."""
        logs = self.storage.logs
        for call in (
            lambda: logs.write(name, "info", "x"),
            lambda: logs.keep(name),
            lambda: logs.handler(name),
        ):
            with pytest.raises(InvalidValueError):
                call()
        for wait in (lambda: logs.query(name), lambda: logs.prune(name, max_entries=1)):
            with pytest.raises(InvalidValueError):
                await wait()

    async def test_bad_options_of_logs_are_refused(self) -> None:
        """Levels, instants, caps."""
        logs = self.storage.logs
        for level in ("warn", "", None, 3):
            with pytest.raises(InvalidValueError, match="level"):
                logs.write("m", level, "x")  # type: ignore[arg-type]
        with pytest.raises(InvalidValueError, match="level"):
            await logs.query("m", level="loud")
        with pytest.raises(InvalidValueError, match="since"):
            await logs.query("m", since=-1)
        for most in (0, -1, 1.5, True):
            with pytest.raises(InvalidValueError, match="max_entries"):
                logs.keep("m", max_entries=most)  # type: ignore[arg-type]
        with pytest.raises(InvalidValueError, match="keep_for"):
            logs.keep("m", keep_for=0)

        assert {} == await logs.modules()
