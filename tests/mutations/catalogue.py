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


FENCE = ("tests/conformance/test_fence.py", "tests/conformance/test_repeats.py", "tests/races")
STATES = ("tests/conformance/test_states.py", "tests/conformance/test_expiry.py", "tests/races/test_cancel_races.py")
CLOCKS = ("tests/races/test_clocks.py", "tests/races/test_expiry_races.py")
LOCKS = ("tests/races/test_expiry_races.py", "tests/races/test_sweep.py", "tests/races")
CAPS = ("tests/fairness/test_caps.py",)
SHARES = ("tests/fairness/test_shares.py",)
CLAIMS = ("tests/conformance/test_claim.py", "tests/conformance/test_states.py")
CANARY = ("tests/test_canary.py",)
HELD = "*held(t, given)"
TOKEN = '            runs.c.fencing_token == bindparam("token", type_=BigInteger),\n'
LEASED = "            runs.c.locked_until.is_not(None),\n"

MUTATIONS = (
    Mutation(
        "a completion that ignores the token",
        "runqueue/statements/finish.py",
        HELD,
        "*(x for n, x in enumerate(held(t, given)) if n != 2)",
        FENCE,
    ),
    Mutation(
        "a heartbeat that ignores the token",
        "runqueue/statements/lease.py",
        HELD,
        "*(x for n, x in enumerate(held(t, given)) if n != 2)",
        FENCE,
    ),
    Mutation("a failure that ignores the token", "runqueue/statements/finish.py", TOKEN, "", FENCE),
    Mutation("a fenced transaction that ignores the token", "runqueue/statements/journal.py", TOKEN, "", FENCE),
    Mutation(
        "a completion that ignores the state",
        "runqueue/statements/parts.py",
        "        t.runs.c.locked_until.is_not(None),\n",
        "",
        FENCE,
    ),
    Mutation("a failure that ignores the state", "runqueue/statements/finish.py", LEASED, "", FENCE),
    Mutation("a fenced transaction that ignores the state", "runqueue/statements/journal.py", LEASED, "", FENCE),
    Mutation(
        "a sweep that neither locks what it read nor looks again",
        "runqueue/statements/expiry.py",
        "runs.c.id == ids_of(expired), runs.c.locked_until <= STATEMENT_TIME",
        "runs.c.id == ids_of(expired)",
        LOCKS,
        also=(("        .with_for_update(skip_locked=True)\n", ""),),
    ),
    Mutation(
        "a clock that stands still in a transaction",
        "runqueue/statements/parts.py",
        "CLOCK = func.clock_timestamp()",
        "CLOCK = func.now()",
        CLOCKS,
    ),
    Mutation(
        "a claim that looks for due runs with the transaction's clock",
        "runqueue/statements/parts.py",
        "STATEMENT_TIME = func.statement_timestamp()",
        "STATEMENT_TIME = func.now()",
        CLOCKS,
    ),
    Mutation(
        "attempts that are not counted at the claim",
        "runqueue/statements/claim.py",
        "runs.c.attempts + ONE",
        "runs.c.attempts",
        CLAIMS,
    ),
    Mutation(
        "a claim that waits for locked runs",
        "runqueue/statements/heads.py",
        "key_share=True, skip_locked=True",
        "key_share=True",
        LOCKS,
    ),
    Mutation(
        "a heartbeat that waits for locked runs",
        "runqueue/statements/lease.py",
        "key_share=True, skip_locked=True",
        "key_share=True",
        LOCKS,
    ),
    Mutation(
        "a redrive that starts the token again",
        "runqueue/statements/control.py",
        "            attempts=0,\n",
        "            attempts=0,\n            fencing_token=0,\n            settled_token=0,\n",
        FENCE,
    ),
    Mutation(
        "a cancel that ignores that the run has ended",
        "runqueue/statements/control.py",
        "runs.c.finished_at.is_(None), ",
        "",
        STATES,
    ),
    Mutation(
        "a release that charges the attempt",
        "runqueue/operations/settle.py",
        "delay=delay, given_back=1",
        "delay=delay, given_back=0",
        STATES,
    ),
    Mutation(
        "a failure that forgets the requested cancel",
        "runqueue/operations/settle.py",
        "if row.cancel_requested_at is not None:\n        return _settle(connection, ctx, lease, RunStatus.CANCELLED, "
        '"run.cancelled", data, error)',
        "",
        STATES,
    ),
    Mutation(
        "an expiry that forgets the requested cancel",
        "runqueue/statements/expiry.py",
        "(runs.c.cancel_requested_at.is_not(None), CANCELLED), ",
        "",
        STATES,
    ),
    Mutation(
        "a worker that only works when it is woken",
        "runqueue/worker/control.py",
        "if self._work or now >= next_poll:",
        "if self._work:",
        ("tests/worker/test_listener.py", "tests/worker"),
    ),
    Mutation(
        "a listener that does not say that it missed something",
        "runqueue/wakeup.py",
        '        self.up = True\n        self._on_hint("")\n',
        "        self.up = True\n",
        ("tests/worker/test_listener.py", "tests/worker"),
    ),
    Mutation(
        "a worker without a local deadline",
        "runqueue/worker/execution.py",
        "steps = [] if self.lost else [self.stop_by]",
        "steps: list[float] = []",
        ("tests/worker/test_unreachable_database.py", "tests/worker/test_frozen_process.py"),
    ),
    Mutation(
        "a failed heartbeat that ends the heartbeats",
        "runqueue/worker/heartbeat.py",
        "            except Exception as error:\n                failures += 1\n",
        "            except Exception:\n                return\n                failures += 1\n",
        ("tests/worker/test_unreachable_database.py", "tests/worker"),
    ),
    Mutation(
        "a release that stores its reason as it is",
        "runqueue/operations/settle.py",
        '{"reason": redacted_reason(ctx, reason), "delay": delay}',
        '{"reason": reason, "delay": delay}',
        CANARY,
    ),
    Mutation(
        "events that are stored as they are",
        "runqueue/operations/redacting.py",
        "    if not ctx.hooks.redacts(place):\n",
        '    if place == "event" or not ctx.hooks.redacts(place):\n',
        CANARY,
    ),
    Mutation(
        "an observer's fault that is logged as it is",
        "runqueue/hooks/manager.py",
        'self.redact(": ".join(describe(error)), "log")',
        '": ".join(describe(error))',
        CANARY,
    ),
    Mutation(
        "a command that prints an error as it is",
        "runqueue/cli/main.py",
        'app.redacted(f"runqueue: {message}{app.hint}")',
        'f"runqueue: {message}{app.hint}"',
        CANARY,
    ),
    Mutation(
        "a cap counted without the lock",
        "runqueue/operations/turns.py",
        "[name in mine for name in quotas]",
        "[True for name in quotas]",
        CAPS,
    ),
    Mutation(
        "a cap locked and counted in one statement",
        "runqueue/operations/turns.py",
        'mine = set(connection.execute(_lock(ctx), {"tenants": capped}).scalars())',
        "mine = set(capped)",
        CAPS,
    ),
    Mutation(
        "a cap that counts nothing",
        "runqueue/statements/turns.py",
        "func.least(given.c.quota, rules.c.cap - flying.c.count)",
        "func.least(given.c.quota, rules.c.cap)",
        CAPS,
    ),
    Mutation(
        "a walk that begins where it began before",
        "runqueue/operations/walk.py",
        "self.place = Place(turn.tenant_id, turn.revolution, left)\n",
        "pass\n",
        SHARES,
    ),
    Mutation(
        "a turn that is counted twice",
        "runqueue/statements/turns.py",
        "(first, NONE), otherwise",
        "otherwise",
        SHARES,
    ),
    Mutation(
        "a lease that is charged again",
        "runqueue/statements/control.py",
        "leased_at=choose((waiting, null()), otherwise=runs.c.leased_at)",
        "leased_at=runs.c.leased_at",
        ("tests/fairness/test_charges.py",),
    ),
    Mutation(
        "an observer without a savepoint",
        "runqueue/hooks/manager.py",
        "    if is_autocommit(connection):\n",
        "    if True:\n",
        ("tests/test_hooks.py",),
    ),
    Mutation(
        "an aged claim that takes the oldest of each priority",
        "runqueue/statements/heads.py",
        "return lambda available_at: in_epoch(available_at) - level * step",
        "return lambda available_at: in_epoch(available_at) - 0 * level * step",
        ("tests/test_aging.py",),
    ),
)
