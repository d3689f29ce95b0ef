"""Bugs that the suite must notice: each a change of one place in the library, and the tests that must fail for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """Replace `old` by `new` in `file`, and `also`; some test under `tests` must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    also: tuple[tuple[str, str], ...] = ()

    @property
    def changes(self) -> tuple[tuple[str, str], ...]:
        """All replacements."""
        return ((self.old, self.new), *self.also)


OPERATIONS = ("tests/conformance", "tests/races")
HELD = "*held(t, given)"
TOKEN = '            runs.c.fencing_token == bindparam("token", type_=BigInteger),\n'
LEASED = "            runs.c.locked_until.is_not(None),\n"

MUTATIONS = (
    Mutation(
        "a completion that ignores the token",
        "runqueue/statements/finish.py",
        HELD,
        "*(x for n, x in enumerate(held(t, given)) if n != 2)",
        OPERATIONS,
    ),
    Mutation(
        "a heartbeat that ignores the token",
        "runqueue/statements/lease.py",
        HELD,
        "*(x for n, x in enumerate(held(t, given)) if n != 2)",
        OPERATIONS,
    ),
    Mutation("a failure that ignores the token", "runqueue/statements/finish.py", TOKEN, "", OPERATIONS),
    Mutation("a fenced transaction that ignores the token", "runqueue/statements/journal.py", TOKEN, "", OPERATIONS),
    Mutation(
        "a completion that ignores the state",
        "runqueue/statements/parts.py",
        "        t.runs.c.locked_until.is_not(None),\n",
        "",
        OPERATIONS,
    ),
    Mutation("a failure that ignores the state", "runqueue/statements/finish.py", LEASED, "", OPERATIONS),
    Mutation("a fenced transaction that ignores the state", "runqueue/statements/journal.py", LEASED, "", OPERATIONS),
    Mutation(
        "a sweep that neither locks what it read nor looks again",
        "runqueue/statements/expiry.py",
        "runs.c.id == ids_of(expired), runs.c.locked_until <= STATEMENT_TIME",
        "runs.c.id == ids_of(expired)",
        OPERATIONS,
        also=(("        .with_for_update(skip_locked=True)\n", ""),),
    ),
    Mutation(
        "a clock that stands still in a transaction",
        "runqueue/statements/parts.py",
        "CLOCK = func.clock_timestamp()",
        "CLOCK = func.now()",
        OPERATIONS,
    ),
    Mutation(
        "a claim that looks for due runs with the transaction's clock",
        "runqueue/statements/parts.py",
        "STATEMENT_TIME = func.statement_timestamp()",
        "STATEMENT_TIME = func.now()",
        OPERATIONS,
    ),
    Mutation(
        "attempts that are not counted at the claim",
        "runqueue/statements/claim.py",
        "runs.c.attempts + ONE",
        "runs.c.attempts",
        OPERATIONS,
    ),
    Mutation(
        "a claim that waits for locked runs",
        "runqueue/statements/claim.py",
        "key_share=True, skip_locked=True",
        "key_share=True",
        OPERATIONS,
    ),
    Mutation(
        "a heartbeat that waits for locked runs",
        "runqueue/statements/lease.py",
        "key_share=True, skip_locked=True",
        "key_share=True",
        OPERATIONS,
    ),
    Mutation(
        "a redrive that starts the token again",
        "runqueue/statements/control.py",
        "            attempts=0,\n",
        "            attempts=0,\n            fencing_token=0,\n            settled_token=0,\n",
        OPERATIONS,
    ),
    Mutation(
        "a cancel that ignores that the run has ended",
        "runqueue/statements/control.py",
        "runs.c.finished_at.is_(None), ",
        "",
        OPERATIONS,
    ),
    Mutation(
        "a release that charges the attempt",
        "runqueue/operations/settle.py",
        "delay=delay, given_back=1",
        "delay=delay, given_back=0",
        OPERATIONS,
    ),
    Mutation(
        "a failure that forgets the requested cancel",
        "runqueue/operations/settle.py",
        "if row.cancel_requested_at is not None:\n        return _settle(connection, ctx, lease, RunStatus.CANCELLED, "
        '"run.cancelled", data, error)',
        "",
        OPERATIONS,
    ),
    Mutation(
        "an expiry that forgets the requested cancel",
        "runqueue/statements/expiry.py",
        "(runs.c.cancel_requested_at.is_not(None), CANCELLED), ",
        "",
        OPERATIONS,
    ),
    Mutation(
        "a worker that only works when it is woken",
        "runqueue/worker/control.py",
        "if self._work or now >= next_poll:",
        "if self._work:",
        ("tests/worker",),
    ),
    Mutation(
        "a listener that does not say that it missed something",
        "runqueue/wakeup.py",
        '        self.up = True\n        self._on_hint("")\n',
        "        self.up = True\n",
        ("tests/worker",),
    ),
    Mutation(
        "a worker without a local deadline",
        "runqueue/worker/execution.py",
        "steps = [] if self.lost else [self.stop_by]",
        "steps: list[float] = []",
        ("tests/worker",),
    ),
    Mutation(
        "a failed heartbeat that ends the heartbeats",
        "runqueue/worker/heartbeat.py",
        "            except Exception as error:\n                failures += 1\n",
        "            except Exception:\n                return\n                failures += 1\n",
        ("tests/worker",),
    ),
)
