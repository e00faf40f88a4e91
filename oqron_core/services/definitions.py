"""Definitions: what an application runs, as a board shows it."""

from __future__ import annotations

import asyncio

from collections.abc import Mapping
from typing import Any, Final

import attrs

from oqron_core._codec import canonical, encode
from oqron_core._names import check_name, check_namespace
from oqron_core.exceptions import ConflictError, InvalidValueError
from oqron_core.models import Definition, structure, unstructure
from oqron_core.models._wire import LOCAL
from oqron_core.planes.values import MISSING, Delete, Insert, Page, Patch, Query, Record
from oqron_core.protocol.pointers import KINDS
from oqron_core.protocol.session import Session
from oqron_core.taxonomy import RecordKind, classify_namespace


__all__ = ["Defined", "Definitions"]

_TRIES: Final = 20
_VERSION_MOST: Final = 2**53


@attrs.frozen(kw_only=True)
class Defined(Definition):
    """
    A definition, with where it stands.

    Attributes:
        namespace: Where. Not on the wire.
    """

    namespace: str = attrs.field(default="", metadata={LOCAL: True})


class Definitions:
    """
    Versioned definitions in the namespaces ``cron``, ``schedule``, ``cache``,
    ``ratelimit``, ``topic`` and ``webhook_endpoints:<dispatcher>``.

    Meant to be written at every start: what has not changed writes nothing.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    async def put(
        self,
        namespace: str,
        name: str,
        spec: Mapping[str, Any] | None = None,
        *,
        version: int | None = None,
    ) -> Defined:
        """
        Define something, or change its definition.

        Args:
            namespace: One of those above.
            name: Unique in the namespace.
            spec: What it is, an object; None for an empty one.
            version: Which version of the definition this is; None counts the
                stored one up where the spec has changed, and starts with 1.

        Returns:
            The definition as it is stored now. Where the spec is as it was, it
            is the one of before, and keeps its version unless *version* is higher.

        Raises:
            InvalidValueError: An argument is not legal; or the spec of a schedule
                that has a pointer would change, which `Schedules.put` does.
            ConflictError: A higher version is stored, or the same version with
                another spec; or others kept changing it.
            UnavailableError: The durable plane did not answer; repeat the call.
        """
        self._check(namespace, name)
        limit = self._session.settings.max_value_bytes
        wanted = _check_spec(spec, limit)
        if version is not None:
            _check_version(version)
        durable = self._session.durable
        for _ in range(_TRIES):
            now = await self._session.durable_time.now()
            record = (await durable.get(namespace, [name]))[0]
            if record is None:
                made = Definition(name=name, version=version or 1, spec=wanted, updated_at=now)
                write: Insert | Patch = Insert(namespace, name, unstructure(made))
            else:
                patch = _change(record, wanted, version, now)
                if patch is None:
                    return _defined(record)
                write = patch
            result = (await durable.write([write]))[0]
            if result.applied and result.record is not None:
                return _defined(result.record)
            await asyncio.sleep(0)
        msg = f"{namespace} {name!r} kept changing while it was defined; try again"
        raise ConflictError(msg)

    async def get(self, namespace: str, name: str) -> Defined | None:
        """Read a definition; None where there is none."""
        self._check(namespace, name)
        record = (await self._session.durable.get(namespace, [name]))[0]
        return None if record is None else _defined(record)

    async def delete(self, namespace: str, name: str) -> bool:
        """
        Remove a definition; of a schedule also its pointer. Its pause state stays.

        Returns:
            False where there was none.
        """
        self._check(namespace, name)
        results = await self._session.durable.write([Delete(namespace, name)], returning=())
        return results[0].applied

    async def query(
        self, namespace: str | None = None, *, limit: int = 50, after: str | None = None
    ) -> Page[Defined]:
        """
        Read definitions, by namespace and name.

        Args:
            namespace: Only of this one; None for all.
            limit: At most this many, 1 to 10,000.
            after: The ``next`` of the page before.
        """
        self._session.check_open()
        if namespace is not None:
            _check_namespace(namespace)
        query = Query(kind=RecordKind.DEFINITION, namespace=namespace, limit=limit, after=after)
        page = await self._session.durable.query(query)
        return Page([_defined(record) for record in page.items], page.next)

    def _check(self, namespace: str, name: str) -> None:
        self._session.check_open()
        _check_namespace(namespace)
        check_name("name", name)


def _check_namespace(namespace: str) -> None:
    check_namespace(namespace)
    if classify_namespace(namespace) is not RecordKind.DEFINITION:
        reason = (
            f"{namespace!r} holds no definitions; cron, schedule, cache, ratelimit, topic "
            "and webhook_endpoints:<dispatcher> do"
        )
        raise InvalidValueError("namespace", reason)


def _check_spec(spec: object, max_bytes: int) -> dict[str, Any]:
    if spec is None:
        return {}
    if not isinstance(spec, Mapping):
        raise InvalidValueError("spec", f"must be an object, not {type(spec).__name__}")
    checked: dict[str, Any] = encode(dict(spec), "spec", max_bytes=max_bytes).load()
    return checked


def _check_version(version: object) -> None:
    if type(version) is not int or not 1 <= version <= _VERSION_MOST:
        raise InvalidValueError("version", f"must be an int of at least 1, not {version!r}")


def _defined(record: Record) -> Defined:
    defined = structure(Defined, {"name": record.id, **record.readable()})
    object.__setattr__(defined, "namespace", record.namespace)
    return defined


def _change(record: Record, spec: dict[str, Any], version: int | None, now: int) -> Patch | None:
    """Build the guarded change of a definition; None where there is none."""
    stored = record.value.get("version", MISSING)
    current = stored if isinstance(stored, int) else 1
    same = canonical(encode(record.field("spec") or {}, max_bytes=None)) == canonical(
        encode(spec, max_bytes=None)
    )
    _refuse_downgrade(record, current, version, same=same)
    if same and (version is None or version == current):
        return None
    if not same and record.namespace in KINDS and "nextRunAt" in record.value:
        reason = (
            f"of {record.namespace} {record.id!r} belongs to its pointer; change both with "
            "schedules.put"
        )
        raise InvalidValueError("spec", reason)
    fields = {"version": current + 1 if version is None else version, "updatedAt": now}
    return Patch(
        record.namespace,
        record.id,
        set={**fields, "spec": spec},
        expect={"version": stored},
    )


def _refuse_downgrade(record: Record, current: int, version: int | None, *, same: bool) -> None:
    if version is None or version > current:
        return
    what = f"{record.namespace} {record.id!r}"
    if version < current:
        msg = f"{what} has version {current} already; version {version} is older"
        raise ConflictError(msg)
    if not same:
        msg = f"{what} has another spec under version {version}; give the new one a higher version"
        raise ConflictError(msg)
