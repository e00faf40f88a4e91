"""What ``oqron doctor`` asks of the file."""

from __future__ import annotations

import sqlite3

from pathlib import Path

from oqron_core.exceptions import StorageError
from oqron_sqlite._settings import SqliteSettings
from oqron_sqlite._store import SqliteStore


__all__ = ["check_file"]


async def check_file(settings: SqliteSettings) -> tuple[bool, str]:
    """Say whether the file opens and is whole; makes none where there is none."""
    unmade = _unmade(settings)
    if unmade is not None:
        return unmade
    store = SqliteStore(settings)
    try:
        await store.open()
    except StorageError as error:
        return False, str(error)
    try:
        found = await store.durable.read(_quick_check)
        health = await store.health(store.durable)
    finally:
        await store.close()
    if found != "ok":
        return False, f"{settings.path} is damaged ({found}); restore a copy"
    details = health.details
    return True, (
        f"SQLite {details['sqlite']}, {settings.path}: {details['bytes']} bytes, "
        f"log {details['wal_bytes']}, synchronous = {settings.synchronous}"
    )


def _unmade(settings: SqliteSettings) -> tuple[bool, str] | None:
    """Say what there is to say where a file is not there yet."""
    paths = [Path(path) for path in (settings.path, settings.hot_path) if path]
    missing = [path for path in paths if not path.exists()]
    if not missing:
        return None
    gone = [path.parent for path in missing if not path.parent.is_dir()]
    if gone:
        return False, f"the folder {gone[0]} is not there; make it"
    names = ", ".join(map(str, missing))
    return True, f"{names} is made when a storage is opened"


def _quick_check(driver: sqlite3.Connection, now: int) -> str:
    del now
    return str(driver.execute("PRAGMA quick_check(1)").fetchone()[0])
