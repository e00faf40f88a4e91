"""
Makes docs/modes.md out of what ``oqron plan`` says of every mode.

``python docs/generate_modes.py`` writes it; a test holds it up to date. Planes say only
when they are open what they can do, so Redis and PostgreSQL are needed: those that
``OQRON_TEST_REDIS_URL`` and ``OQRON_TEST_POSTGRES_URL`` name, or throwaway ones.
"""

from __future__ import annotations

import asyncio
import os
import tempfile

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from oqron_core import Mode, RecordKind, Settings, table_for_kind
from oqron_core._plugins import Plugins, discover
from oqron_core.cli._planning import SURVIVES, Plan, make_plan
from oqron_core.cli._probe import probe
from oqron_core.testing.servers import postgres_server, redis_server


PAGE: Final = Path(__file__).with_name("modes.md")
PAIRS: Final = (
    *((mode.hot, mode.durable) for mode in Mode),
    ("memory", "sqlite"),
    ("memory", "postgres"),
)
"""Every mode, and the pairs without a name that people ask for."""

_HEAD: Final = """\
<!-- Made by generate_modes.py out of what `oqron plan` says; change that. -->

# Modes

What each {term}`mode` is made of, what it can do, and what it can lose. All of it is
what the {term}`backends <backend>` declare when they are opened, with their settings as
they are by default. [Choose a mode](howto/choose-a-mode.md) says which to take.

Settings and servers change some of this. Ask for your own:

```console
$ oqron plan --mode redis-postgres
```

"""
_FEATURES: Final = """\

## Features

*Native* is done by the backend itself. *Emulated* gives the same results in a slower
way. *Refused* is not there: the call raises, or nothing of the kind is promised. Counters
are the hot plane's own, and limits stand on them: [how to count](limits.md#counting).

"""
_DETAILS: Final = """\

### In the {} plane

In which way, and within which limits, by the backend of the plane.

"""
_DURABILITY: Final = """\

## Durability

What a record survives, by its kind; and what the hot plane itself does.

"""
_LOSSES: Final = """\

## What is lost when something dies

"No job" means that leases lapse and others take over, within the length of a lease. How
that is tested is told in [Reliability](reliability.md).
"""


def modes_page(redis_url: str, postgres_url: str) -> str:
    """Give the whole page, with Redis and PostgreSQL from these URLs."""
    with tempfile.TemporaryDirectory() as folder:
        sections = {
            "redis": {"url": redis_url},
            "postgres": {"url": postgres_url},
            "sqlite": {"path": str(Path(folder, "modes.db"))},
        }
        plugins = discover(only=())
        plans = [_plan(plugins, pair, sections) for pair in PAIRS]
    return "".join(
        [
            *(_HEAD, _pairs(plans)),
            *(_FEATURES, _features(plans)),
            *(_DETAILS.format("hot"), _details(plans, "hot")),
            *(_DETAILS.format("durable"), _details(plans, "durable")),
            *(_DURABILITY, _durability(plans), _levels(plans)),
            *(_LOSSES, *(f"\n### {_title(plan)}\n\n{_losses(plan)}" for plan in plans)),
        ]
    )


def _plan(plugins: Plugins, pair: tuple[str, str], sections: dict[str, dict[str, Any]]) -> Plan:
    hot, durable = pair
    settings = Settings(hot=hot, durable=durable, sections=sections)
    plan = make_plan(settings, *asyncio.run(probe(plugins, settings)))
    for found in (plan.hot, plan.durable):
        if found.error is not None:
            msg = f"the {found.plane} plane {found.backend} must open: {found.error}"
            raise LookupError(msg)
    return plan


def _title(plan: Plan) -> str:
    settings = plan.settings
    pair = f"`{settings.hot}` with `{settings.durable}`"
    return pair if settings.mode is None else f"`{settings.mode}`"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _pairs(plans: Sequence[Plan]) -> str:
    rows = [
        (
            "–" if plan.settings.mode is None else f"`{plan.settings.mode}`",
            f"`{plan.settings.hot}`",
            f"`{plan.settings.durable}`",
            f"`{' '.join(_distributions(plan))}`",
        )
        for plan in plans
    ]
    return _table(["mode", "`hot`", "`durable`", "install"], rows)


def _distributions(plan: Plan) -> list[str]:
    names = dict.fromkeys((plan.settings.hot, plan.settings.durable))
    return ["oqron-core", *(f"oqron-{name}" for name in names)]


def _features(plans: Sequence[Plan]) -> str:
    """Give a row for each feature, and a column for each mode."""
    found = [{(item.plane, item.name): item.support for item in plan.features} for plan in plans]
    keys = dict.fromkeys(key for features in found for key in features)
    rows = [
        (plane, name, *(features.get((plane, name), "native") for features in found))
        for plane, name in sorted(keys, key=lambda key: key[0] == "durable")
    ]
    return _table(["plane", "feature", *map(_title, plans)], rows)


def _details(plans: Sequence[Plan], plane: str) -> str:
    """Give a row for each feature of a plane, and a column for each backend of it."""
    backends = {
        found.backend: {item.name: item.detail for item in plan.features if item.plane == plane}
        for plan in plans
        for found in (plan.hot, plan.durable)
        if found.plane == plane
    }
    names = dict.fromkeys(name for details in backends.values() for name in details)
    rows = [(name, *(said.get(name, "–") for said in backends.values())) for name in names]
    return _table(["feature", *(f"`{name}`" for name in backends)], rows)


def _durability(plans: Sequence[Plan]) -> str:
    kinds = [
        (kind.value, f"`oqron_{table_for_kind(kind)}`", *(plan.durability[kind] for plan in plans))
        for kind in RecordKind
    ]
    hot = [plan.hot.capabilities.durability for plan in plans if plan.hot.capabilities]
    passing = ("locks, counters, cache, live progress", "none: the hot plane", *hot)
    return _table(["record kind", "table", *map(_title, plans)], [*kinds, passing])


def _levels(plans: Sequence[Plan]) -> str:
    there = {level for plan in plans for level in plan.durability.values()}
    return "\n" + "".join(
        f"* *{level}* survives {said}.\n" for level, said in SURVIVES.items() if level in there
    )


def _losses(plan: Plan) -> str:
    return _table(["when this dies", "this is lost"], [(it.dies, it.lost) for it in plan.losses])


def _main() -> None:
    with ExitStack() as stack:
        redis = os.environ.get("OQRON_TEST_REDIS_URL")
        postgres = os.environ.get("OQRON_TEST_POSTGRES_URL")
        if not redis:
            redis = stack.enter_context(redis_server(persistent=True)).url
        if not postgres:
            postgres = stack.enter_context(postgres_server()).url()
        PAGE.write_text(modes_page(redis, postgres), encoding="utf-8")


if __name__ == "__main__":
    _main()
