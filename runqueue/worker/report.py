"""What a worker's log says of a handler: where it failed, without the values it failed on."""

from __future__ import annotations

import logging
import sysconfig
import traceback
from pathlib import Path

from runqueue.failures import stack
from runqueue.operations.context import Context
from runqueue.types import ClaimedRun
from runqueue.worker.outcome import Failed, Outcome, Stop

log = logging.getLogger("runqueue.worker")

_NOT_THEIRS = (str(Path(__file__).parents[1]), *{sysconfig.get_path(x) for x in ("purelib", "platlib", "stdlib")})
_LONGEST = 500


def failed(ctx: Context, claimed: ClaimedRun, outcome: Outcome | None, error: BaseException) -> None:
    """Log a failed attempt: the text as it is stored, redacted, and the place; at DEBUG the stack, as code only."""
    if not isinstance(outcome, Failed):
        return
    run, (code, message, _) = claimed.run, outcome.error
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [x for x in frames if not x.filename.startswith(_NOT_THEIRS)] or list(frames)
    place = f" at {theirs[-1].filename}:{theirs[-1].lineno} in {theirs[-1].name}" if theirs else ""
    text = message.partition("\n")[0][:_LONGEST]
    log.warning(
        "run %s of kind %r failed, attempt %d of %d: %s: %s%s",
        run.id, run.kind, run.attempts, run.max_attempts, code, text, place,
    )  # fmt: skip
    if log.isEnabledFor(logging.DEBUG):
        log.debug("run %s failed here:\n%s", run.id, ctx.hooks.redact(stack(error), "log"))


def given_up(claimed: ClaimedRun, stop: Stop, *, in_thread: bool) -> None:
    """Log a handler that did not stop when it was told to."""
    kept = "; its thread goes on and keeps its slot" if in_thread else ""
    log.warning("the handler of run %s did not stop (%s) and is given up%s", claimed.run.id, stop.value, kept)
