"""What is told of an exception: its class and its message, never its arguments, its frames or its SQL parameters.

The message comes from code that nobody here has seen, at the moment when a failure has to be recorded. So everything
that is asked of an exception may raise anything, and `describe` still answers.
"""

from __future__ import annotations

import re
import traceback
from typing import Any, NamedTuple

from runqueue.values import clean

_CODE = 200
_PART = 32 * 1024
_MESSAGE = 64 * 1024
_CAUSES = 5
_LEAVES = 5
_NOTES = 5
_VISITS = 1000
_UNKNOWN = "Exception"
_MISSING = object()
_QUOTED = re.compile(r'"(?:.*"|.*)')


class Described(NamedTuple):
    """A failure as it may be stored: code and message, redacted, cleaned and cut; and the exception that it was."""

    code: str
    message: str
    exception: BaseException | None = None


def describe(error: BaseException | str) -> tuple[str, str]:
    """The code and the message of a failure: the name of its class (`"error"` for a mere string) and what it says.

    The message has the exception's text, its notes, the first failures of a group, and up to five causes. Of a
    database error it has the driver's class, the first line and the SQLSTATE, because what follows quotes rows. The
    code has at most 200 bytes, the message 64 KiB; it is not redacted yet. Never raises.
    """
    try:
        if _is(error, str):
            return "error", clean(error, _MESSAGE)  # type: ignore[arg-type]
        code = _code(error)
    except BaseException:
        code = _UNKNOWN
    try:
        return code, clean(_story(error), _MESSAGE)
    except BaseException:
        return code, "<this failure could not be described>"


def stack(error: BaseException) -> str:
    """Where an exception was raised, as lines of code: no message, no values. Never raises."""
    try:
        return "".join(traceback.format_list(traceback.extract_tb(error.__traceback__)))
    except BaseException:
        return ""


def _story(error: Any) -> str:
    """The message of an exception, and of what led to it."""
    parts = [_message(error)]
    seen = {id(error)}
    while len(parts) <= _CAUSES:
        told = _wrapped(error)
        link, error = _previous(error)
        if error is told and told is not None:
            link, error = _previous(error)
        if error is None or id(error) in seen:
            break
        seen.add(id(error))
        parts.append(f"({link} {_headline(error)})")
    return " ".join(part for part in parts if part)


def _previous(error: Any) -> tuple[str, Any]:
    """What an exception was raised from, or else while handling what; None where nothing."""
    cause = _ask(error, "__cause__", None)
    if cause is not None:
        return "caused by", cause
    hidden = _ask(error, "__suppress_context__", False) is True
    return "while handling", None if hidden else _ask(error, "__context__", None)


def _headline(error: Any) -> str:
    """`Class: message`, or the class alone where there is no message."""
    message = _message(error)
    return f"{_code(error)}: {message}" if message else _code(error)


def _message(error: Any) -> str:
    """The text of one exception with its notes, and with the leaves of a group."""
    orig = _wrapped(error)
    if orig is not None:
        text = f"{_code(orig)}: {_driver(orig)}"
    elif _has(error, "orig", "statement", "params"):
        text = _first_line(_argument(error))
    elif _has(error, "sqlstate") or _has(error, "pgcode"):
        text = _driver(error)
    else:
        text = _text(error)
    notes = _ask(error, "__notes__", None)
    if _is(notes, (list, tuple)):
        text = "\n".join([text, *(_text(note) for note in notes[:_NOTES])])
    return f"{text} [{_leaves(error)}]" if _is(error, BaseExceptionGroup) else text


def _wrapped(error: Any) -> Any:
    """The driver's error inside a SQLAlchemy error; None in any other."""
    return _ask(error, "orig", None) if _has(error, "orig", "statement", "params") else None


def _driver(error: Any) -> str:
    """The first line of a driver's error, with its SQLSTATE. The lines after it quote values of the row.

    So does the first line where the value itself is wrong, class 22: `invalid input syntax for type integer: "…"`.
    """
    state = _ask(error, "sqlstate", None) or _ask(error, "pgcode", None)
    line = _first_line(_text(error))
    if not _is(state, str):
        return line
    if state.startswith("22"):
        line = _QUOTED.sub('"…"', line)
    return f"{line} (sqlstate {clean(state, 20)})"


def _leaves(group: Any) -> str:
    """The first few exceptions inside a group that are no groups themselves, and how many more there are."""
    todo = [group]
    found: list[str] = []
    more = 0
    for _ in range(_VISITS):
        if not todo:
            break
        item = todo.pop()
        grouped = _is(item, BaseExceptionGroup)
        inner: Any = _ask(item, "exceptions", None) if grouped else None
        if _is(inner, (list, tuple)):
            todo.extend(reversed(inner[:_VISITS]))
        elif grouped or len(found) == _LEAVES:
            more += 1
        else:
            found.append(_headline(item))
    return "; ".join(found) + (f"; {more} more" if more else "")


def _is(thing: Any, kinds: type | tuple[type, ...]) -> bool:
    """What isinstance tells, without believing the object's own `__class__`."""
    return issubclass(type(thing), kinds)


def _has(error: Any, *attributes: str) -> bool:
    return all(_ask(error, attribute, _MISSING) is not _MISSING for attribute in attributes)


def _argument(error: Any) -> str:
    """The text that an exception was made with."""
    args = _ask(error, "args", None)
    return _text(args[0]) if _is(args, tuple) and args else ""


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.split("\n") if line.strip()), "")


def _code(error: Any) -> str:
    """The name of an exception's class."""
    try:
        return clean(type(error).__name__, _CODE).replace("\n", " ") or _UNKNOWN
    except BaseException:
        return _UNKNOWN


def _text(thing: Any) -> str:
    """`str(thing)`, cut; where that raises, a text that says so."""
    try:
        return clean(str(thing), _PART)
    except BaseException as error:
        return f"<no message: __str__ raised {_code(error)}>"


def _ask(thing: Any, attribute: str, default: Any) -> Any:
    """An attribute of an object, or `default` where it has none or asking for it fails."""
    try:
        return getattr(thing, attribute, default)
    except BaseException:
        return default
