"""What both planes of one storage share: one file or two, and who waits there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sqlalchemy import MetaData

from oqron_core.planes import Capabilities, Durability, Health, PlaneContext
from oqron_sqlite._clock import WallClock
from oqron_sqlite._lane import Lane
from oqron_sqlite._settings import SqliteSettings
from oqron_sqlite._sweep import sweep
from oqron_sqlite._wake import Hub
from oqron_sqlite.tables import DURABLE, HOT


__all__ = ["MAX_BATCH", "SqliteStore", "capabilities"]

MAX_BATCH = 1000
"""How many writes of a batch that is not atomic share a transaction at most."""


class SqliteStore:
    """
    The opened file of one storage.

    Attributes:
        settings: How it is used.
        clock: What judges every expiry.
        durable: The way to the file of the durable plane.
        hot: The way to the file of the hot plane, which may be the same.
        hub: Who waits on the hot plane.
    """

    def __init__(
        self, settings: SqliteSettings, read_clock: Callable[[], int] | None = None
    ) -> None:
        self.settings = settings
        self.clock = WallClock() if read_clock is None else WallClock(read_clock)
        if settings.hot_path is None:
            self.durable = self.hot = self._lane(settings.path, DURABLE, HOT)
        else:
            self.durable = self._lane(settings.path, DURABLE)
            self.hot = self._lane(settings.hot_path, HOT)
        self.hot.sweep = sweep
        self.hub = Hub(self.hot)

    def _lane(self, path: str, *metadata: MetaData) -> Lane:
        return Lane(path, self.settings, self.clock, *metadata)

    async def open(self) -> None:
        """
        Open the files.

        Raises:
            StorageError: One of them cannot be opened.
        """
        await self.durable.open()
        if self.hot is not self.durable:
            try:
                await self.hot.open()
            except BaseException:
                await self.durable.close()
                raise

    async def close(self) -> None:
        """Finish what was asked for, and close the files."""
        await self.hot.close()
        await self.durable.close()

    async def health(self, lane: Lane) -> Health:
        """Say how a file is."""
        version, pages, page_size = await lane.read(
            lambda driver, _: driver.execute(
                "SELECT sqlite_version(), page_count, page_size "
                "FROM pragma_page_count(), pragma_page_size()"
            ).fetchone()
        )
        details = {
            "sqlite": version,
            "path": lane.path,
            "bytes": pages * page_size,
            "wal_bytes": _size(Path(f"{lane.path}-wal")),
            "synchronous": self.settings.synchronous,
        }
        return Health(ok=True, details=details)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def capabilities(settings: SqliteSettings, context: PlaneContext) -> Capabilities:
    """What both planes can do."""
    full = settings.synchronous == "full"
    return Capabilities(
        backend="sqlite",
        durability=Durability.DISK if full else Durability.SERVER,
        shared=True,
        # Not this process's: every process of the machine reads the same one.
        clock="server",
        notify=False,
        max_batch=MAX_BATCH,
        max_value_bytes=context.max_value_bytes,
    )
