"""What the processes of the demo share: the settings of the queue, and a table of the application's own."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, DateTime, Integer, MetaData, Table, Text, Uuid, text

from runqueue import Settings

SETTINGS = Settings(
    lease=3, heartbeat=0.5, reap_interval=0.5, poll_interval=0.5, retry_base=0.5,
    cancel_grace=3, abandon_after=2, drain_timeout=3, checkpoints_kept=1000,
)  # fmt: skip
"""Much shorter than the defaults: a lost run is taken over while you watch. And no checkpoint is thrown away."""

MAIN, RISKY = "default", "risky"
"""The queues: what is known to crash has workers of its own, so that it takes no other run down with it."""

steps = Table(
    "steps",
    MetaData(schema="runqueue_demo"),
    Column("id", BigInteger, primary_key=True),
    Column("run_id", Uuid, nullable=False),
    Column("step", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("did", Text, nullable=False),
    Column("at", DateTime(timezone=True), nullable=False, server_default=text("clock_timestamp()")),
)
"""One row for each step of an agent. It has no unique constraint on purpose: a step done twice would be seen."""
