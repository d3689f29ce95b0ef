"""What all suites share: a queue with the plugins under test, on a database of each test's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pytest
from sqlalchemy import Engine, NullPool, create_engine

from runqueue.policies import ClaimPolicy
from runqueue.queue import RunQueue
from runqueue.settings import Settings
from runqueue.testing.faults import Faults
from runqueue.testing.rig import Databases, Rig

NOWHERE = "postgresql+psycopg://nowhere/none"
"""For queues that are built to ask their plugins, and never connect."""


class PluginSuite:
    """A base for tests of plugins: subclass it, say which `plugins`, and take the fixtures below.

    `rig` is everything; `queue`, `engine` and `faults` are parts of it. After each test the invariants of every run
    must hold (a trigger has recorded all changes), and no observer may have raised.
    """

    plugins: ClassVar[Sequence[str | object]] = ()
    """Plugins by name or as objects, as `RunQueue` takes them."""
    plugin_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    without: ClassVar[Sequence[str]] = ()
    claim: ClassVar[str | ClaimPolicy] = "reaper"
    """The claim policy, by name or as an object."""
    settings: ClassVar[Settings] = Settings(lease=60, heartbeat=20, retry_base=0, statement_timeout=5)
    """Leases outlive a test: what expires is made to, by the database's clock. Retries are due at once."""

    def make_queue(self, engine: Engine, **changes: Any) -> RunQueue:
        """The queue under test; `changes` replace what the class says. Override it to build one in another way."""
        settings = {x: changes.pop(x) for x in tuple(changes) if x in _SETTINGS}
        options: dict[str, Any] = {
            "plugins": self.plugins,
            "plugin_options": self.plugin_options,
            "without": self.without,
            "claim": self.claim,
            "settings": dataclasses.replace(self.settings, **settings),
        }
        return RunQueue(engine, **(options | changes))

    @pytest.fixture
    def rig(self, request: pytest.FixtureRequest, runqueue_databases: Databases) -> Iterator[Rig]:
        """The database, the queue, and direct looks."""
        marker = request.node.get_closest_marker("audit")
        core = self.make_queue(_nowhere()).core
        with runqueue_databases.audited(core, **(marker.kwargs if marker else {})) as url:
            engine = create_engine(
                url, pool_size=20, hide_parameters=False, connect_args={"application_name": "runqueue"}
            )
            try:
                rig = Rig(url, engine, self.make_queue)
                yield rig
                rig.check_observers()
            finally:
                engine.dispose()

    @pytest.fixture
    def offline(self) -> RunQueue:
        """A queue without a database, for what needs none."""
        return self.make_queue(_nowhere())

    @pytest.fixture
    def queue(self, rig: Rig) -> RunQueue:
        """The queue under test."""
        return rig.queue

    @pytest.fixture
    def engine(self, rig: Rig) -> Engine:
        """Its engine."""
        return rig.engine

    @pytest.fixture
    def faults(self, rig: Rig) -> Faults:
        """What can go wrong."""
        return rig.faults


def _nowhere() -> Engine:
    return create_engine(NOWHERE, poolclass=NullPool)


_SETTINGS = frozenset(x.name for x in dataclasses.fields(Settings))
