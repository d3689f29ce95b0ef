"""What may be stored or logged: values after all redaction plugins, and within their limits again."""

from __future__ import annotations

import logging
from typing import Any

from runqueue import values
from runqueue.errors import InvalidRun
from runqueue.failures import Described, describe, stack
from runqueue.hooks.manager import WITHHELD
from runqueue.hooks.specs import Place
from runqueue.operations.context import Context

log = logging.getLogger("runqueue.hooks")

REASON = 1000
"""The most bytes of a reason."""
WHOLE = 64 * 1024
"""How much of a reason is looked at."""


def describe_error(ctx: Context, error: BaseException | str) -> Described:
    """What may be stored of an error: its code and its text, redacted, cleaned and cut. Never fails."""
    code, message = describe(error)
    exception = error if isinstance(error, BaseException) else None
    return Described(_text(ctx, code, "error", 200), _text(ctx, message, "error", ctx.settings.error_limit), exception)


def told(ctx: Context, error: BaseException) -> str:
    """What a log may say of an exception of ours or of a plugin's: what it says, redacted, and its stack, as code."""
    code, message = describe(error)
    return str(ctx.hooks.redact(f"{code}: {message}\n{stack(error)}", "log"))


def reason(ctx: Context, given: str | None) -> str | None:
    """Why somebody did something, as it may be stored. Raises InvalidRun where it is no text."""
    whole = values.reason(given, WHOLE)  # cut before it is redacted, a secret could not be told any more
    return None if whole is None else _text(ctx, whole, "reason", REASON)


def event_type(ctx: Context, given: str) -> str:
    """The type of an event, as it may be stored. Raises InvalidRun."""
    return _text(ctx, values.name(given, field="type"), "event", 255)


def encode(ctx: Context, value: Any, place: Place, *, field: str, limit: int) -> str:
    """The JSON text of a value, redacted. Raises InvalidRun, also where it is too large only once it is redacted."""
    depth = ctx.settings.json_depth
    text = values.encode(value, field=field, limit=limit, depth=depth)
    if not ctx.hooks.redacts(place):
        return text
    left = ctx.hooks.redact(values.decode(text), place)
    try:  # what stands in the place of a secret may be longer than the secret was
        text = values.encode(left, field=field, limit=16 * limit, depth=depth)
    except InvalidRun:
        log.error("what a redaction plugin made of a value cannot be stored; the value is withheld")
        text = values.encode(WITHHELD, field=field, limit=16 * limit)
    size = len(text.encode())
    if size > limit:
        raise InvalidRun(field, f"must be at most {limit} bytes as JSON once it is redacted, not {size}")
    return text


def _text(ctx: Context, text: str, place: Place, limit: int) -> str:
    return values.clean(ctx.hooks.redact(text, place), limit)
