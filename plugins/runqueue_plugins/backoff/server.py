"""What a server asks for: the `Retry-After` of an error, wherever the libraries in use put it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

_VISITS = 50


def retry_after(error: BaseException) -> float | None:
    """The seconds that the server behind an error asks to be left alone, None where it does not ask. Never raises.

    It is read from `error.retry_after`, else from the header `Retry-After` (seconds, or an HTTP date) of
    `error.response.headers` or `error.headers`. The error that counts may also be the cause (`raise … from error`) or a
    member of an exception group; of several the longest time is returned. A date in the past is 0.
    """
    return max((x for x in map(_asked, _inside(error)) if x is not None), default=None)


def _inside(error: BaseException) -> Iterator[BaseException]:
    """The error, its causes, and the members of groups; each once, and not without end."""
    todo, seen = [error], set[int]()
    while todo and len(seen) < _VISITS:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if one.__cause__ is not None:
            todo.append(one.__cause__)
        if isinstance(one, BaseExceptionGroup):
            todo.extend(one.exceptions[:_VISITS])


def _asked(error: BaseException) -> float | None:
    try:
        own = _seconds(getattr(error, "retry_after", None), None)
        if own is not None:
            return own
        headers = getattr(getattr(error, "response", None), "headers", None) or getattr(error, "headers", None)
        return None if headers is None else _seconds(_header(headers, "Retry-After"), _header(headers, "Date"))
    except Exception:  # anything may be an attribute of somebody's exception, and raise when it is looked at
        return None


def _header(headers: Any, name: str) -> Any:
    found = headers.get(name)
    return headers.get(name.lower()) if found is None else found


def _seconds(value: Any, now: Any) -> float | None:
    """Seconds from a number, a duration, or a header's text; None for anything else."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bytes):
        value = value.decode("ascii")
    if isinstance(value, str):
        value = float(value) if value.strip().replace(".", "", 1).isdigit() else _until(value, now)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(max(value, 0))


def _until(text: str, now: Any) -> float:
    """The seconds until an HTTP date, by the server's own clock where the response says what it shows."""
    return (_date(text) - (_date(now) if isinstance(now, str) else datetime.now(UTC))).total_seconds()


def _date(text: str) -> datetime:
    date = parsedate_to_datetime(text)
    return date if date.tzinfo else date.replace(tzinfo=UTC)
