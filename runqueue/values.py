"""What may be stored: every value is checked here, before it reaches SQL.

JSON knows no NaN, PostgreSQL's `jsonb` holds no NUL and no lone surrogate, and Python cannot read back what is
nested too deep. All of it is refused by an `InvalidRun` that names the place; nothing is changed silently. Only text
about a failure is repaired instead (`clean`), because recording a failure must never fail.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal, DecimalException
from typing import Any
from uuid import UUID

from runqueue.errors import InvalidRun
from runqueue.types import Undecodable

TEN_YEARS = 10 * 365.25 * 86400
"""The longest duration, in seconds."""

CUT = "… [cut]"
"""What `clean` puts at the end of a text that it had to cut."""

_BIG = 10**1000
_BOXES = frozenset({dict, list, tuple})
_ESCAPED_NUL = "\\u0000"
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,59}")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_CONVERSIONS = {
    "datetime": "value.isoformat()",
    "date": "value.isoformat()",
    "timedelta": "value.total_seconds()",
    "UUID": "str(value)",
    "Decimal": "str(value)",
    "bytes": "base64.b64encode(value).decode()",
    "set": "sorted(value)",
    "frozenset": "sorted(value)",
}


def encode(value: Any, *, field: str, limit: int, depth: int = 64) -> str:
    """The JSON text of a value made of dict, list, tuple, str, int, float, bool and None.

    Subclasses (a `StrEnum`, an `OrderedDict`) are written as their base, tuples as lists. `limit` is the most bytes of
    UTF-8 that the text may have, `depth` the most containers inside each other. Raises `InvalidRun` with the path of
    the first thing that cannot be stored and read back unchanged, such as `input.order.items[3].name`.
    """
    ceiling = 4 * limit + 2**16
    if not _ordinary(value, ceiling, depth):
        _explain(value, field, limit, ceiling, depth)
    try:
        text = _JSON.encode(value)
        size = len(text) if text.isascii() else len(text.encode())
    except (ValueError, TypeError, RecursionError) as error:
        _explain(value, field, limit, ceiling, depth)
        raise InvalidRun(field, f"cannot be written as JSON ({type(error).__name__})") from None
    if _ESCAPED_NUL in text:  # a NUL, or somebody's text about one
        _explain(value, field, limit, ceiling, depth)
    if size > limit:
        raise InvalidRun(field, f"must be at most {limit} bytes as JSON, not {size}")
    return text


def decode(text: str | None) -> Any:
    """The value of a stored JSON text; `Undecodable` where Python cannot read it, None for None."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except RecursionError:
        return Undecodable("nested too deep")
    except ValueError as error:
        return Undecodable(str(error))


def digest(text: str) -> str:
    """SHA-256 in hex over a JSON text, the same for all texts of an equal value.

    Spaces, the order of keys and the spelling of a number (`1e2`, `100`, `100.0`) make no difference, so the text
    that was sent and what `jsonb` gives back agree. Raises ValueError where `text` is not JSON.
    """
    return hashlib.sha256(_CANONICAL.encode(json.loads(text, parse_float=_number)).encode()).hexdigest()


def name(value: Any, *, field: str, limit: int = 255) -> str:
    """A name, such as a tenant, queue, kind or key, kept literally; at most `limit` bytes. Raises `InvalidRun`."""
    if not issubclass(type(value), str):
        raise InvalidRun(field, f"must be a string, not {_type(value)}")
    text = str.__str__(value)
    if not text:
        raise InvalidRun(field, "must not be empty")
    _storable(text, field, "")
    size = len(text.encode())
    if size > limit:
        raise InvalidRun(field, f"must be at most {limit} bytes in UTF-8, not {size}")
    return text


def run_id(value: Any, *, field: str = "run_id") -> UUID:
    """A run's id, also as text. Raises `InvalidRun`."""
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value)
    except (TypeError, ValueError, AttributeError):
        raise InvalidRun(field, f"must be a UUID, not {value!r:.80}") from None


def reason(value: Any, limit: int = 1000) -> str | None:
    """Why somebody did something, for people: cleaned and cut. Raises `InvalidRun` where it is no text."""
    if value is None:
        return None
    if not issubclass(type(value), str):
        raise InvalidRun("reason", f"must be a string, not {_type(value)}")
    return clean(value, limit)


def integer(value: Any, *, field: str, low: int, high: int) -> int:
    """A whole number from `low` to `high`; True and False are none. Raises `InvalidRun`."""
    kind = type(value)
    if kind is bool or not issubclass(kind, int):
        raise InvalidRun(field, f"must be a whole number, not {_type(value)}")
    number = int.__index__(value)
    if not low <= number <= high:
        shown = f", not {number}" if abs(number) < 10**20 else ""
        raise InvalidRun(field, f"must be from {low} to {high}{shown}")
    return number


def seconds(value: Any, *, field: str, high: float = TEN_YEARS) -> float:
    """A duration in seconds, from a number of seconds or a `timedelta`; 0 to `high`. Raises `InvalidRun`."""
    kind = type(value)
    if issubclass(kind, timedelta):
        value = value.total_seconds()
    elif kind is bool or not issubclass(kind, (int, float)):
        raise InvalidRun(field, f"must be seconds or a timedelta, not {_type(value)}")
    if not 0 <= value <= high:  # NaN and infinity too, and integers that no float can hold
        shown = f", not {value:.15g}" if abs(value) < 10**20 else ""
        raise InvalidRun(field, f"must be from 0 to {high:.15g} seconds{shown}")
    return float(value) + 0.0


def moment(value: Any, *, field: str) -> datetime:
    """A point in time, as UTC, from an aware datetime in the years 1970 to 9998. Raises `InvalidRun`."""
    if not issubclass(type(value), datetime):
        raise InvalidRun(field, f"must be an aware datetime, not {_type(value)}")
    if value.utcoffset() is None:
        raise InvalidRun(field, "must have a time zone, such as datetime.now(UTC); naive times are refused")
    try:
        when: datetime = value.astimezone(UTC)
    except (OverflowError, ValueError):
        when = datetime.max.replace(tzinfo=UTC)
    if not 1970 <= when.year <= 9998:
        raise InvalidRun(field, "must be in the years 1970 to 9998, in UTC")
    return when


def clean(text: str, limit: int) -> str:
    """A text that PostgreSQL can hold, in at most `limit` bytes of UTF-8; cut at a character where longer.

    Control characters other than newline and tab, and lone surrogates, become U+FFFD. Never raises.
    """
    limit = max(limit, 0)
    text = str.__str__(text)
    raw = _UNPRINTABLE.sub("\ufffd", text[: limit + 1]).encode()
    if len(raw) <= limit:
        return raw.decode()
    mark = CUT if len(CUT.encode()) <= limit else ""
    return raw[: limit - len(mark.encode())].decode(errors="ignore") + mark


def _ordinary(value: Any, ceiling: int, depth: int) -> bool:
    """Whether a value has only types and keys that JSON has, is not too deep, and not far too large.

    One cheap pass, level by level, with no recursion. It ends on cyclic and on multiply shared values too, because
    everything counts each time it is met, and at most `ceiling` characters and members may be counted.
    """
    level: list[Any] = [(value,)]
    while level:
        if depth < 0:
            return False
        depth -= 1
        deeper: list[Any] = []
        for box in level:
            ceiling -= len(box)
            if ceiling < 0:
                return False
            members = box
            if type(box) is dict or issubclass(type(box), dict):
                for key in box:
                    if type(key) is not str and not issubclass(type(key), str):
                        return False
                    ceiling -= len(key)
                members = box.values()
            for item in members:
                kind = type(item)
                if kind is str:
                    ceiling -= len(item)
                elif kind in _BOXES:
                    deeper.append(item)
                elif item is None or kind is float:
                    continue
                elif kind is int or issubclass(kind, int):
                    if not -_BIG < item < _BIG:
                        return False
                elif issubclass(kind, str):
                    ceiling -= len(item)
                elif issubclass(kind, (dict, list, tuple)):
                    deeper.append(item)
                elif not issubclass(kind, float):
                    return False
        level = deeper
    return ceiling >= 0


def _explain(value: Any, field: str, limit: int, ceiling: int, depth: int) -> None:
    """Raise `InvalidRun` for the first thing, in the order of the text, that cannot be stored."""
    todo: list[tuple[str, Any, tuple[int, ...]]] = [(field, value, ())]  # path, value, ids of what it is inside of
    while todo:
        path, item, outer = todo.pop()
        kind = type(item)
        if issubclass(kind, str):
            _storable(item, path, "")
            ceiling -= len(item)
        elif issubclass(kind, int):
            if not -_BIG < item < _BIG:
                raise InvalidRun(path, "an integer must have at most 1000 digits")
        elif issubclass(kind, float):
            if not math.isfinite(item):
                raise InvalidRun(path, "a number must be finite, not NaN or infinity")
        elif issubclass(kind, (dict, list, tuple)):
            if id(item) in outer:
                raise InvalidRun(path, "must not contain itself")
            if len(outer) >= depth:
                raise InvalidRun(path, f"must be nested at most {depth} deep")
            ceiling -= len(item)
            if ceiling >= 0:
                members = _members(path, item)
                ceiling -= sum(map(len, item)) if issubclass(kind, dict) else 0
                inner = (*outer, id(item))
                todo += [(step, member, inner) for step, member in reversed(members)]
        elif item is not None:
            raise InvalidRun(path, _conversion(item))
        if ceiling < 0:
            raise InvalidRun(field, f"must be at most {limit} bytes as JSON, not more than {4 * limit}")


def _members(path: str, box: Any) -> list[tuple[str, Any]]:
    """What a container holds, each with its path. Raises `InvalidRun` for a key that cannot be stored."""
    if not issubclass(type(box), dict):
        return [(f"{path}[{index}]", item) for index, item in enumerate(box)]
    members = []
    for key, item in box.items():
        if not issubclass(type(key), str):
            raise InvalidRun(path, f"keys must be strings, not {_type(key)}")
        text = str.__str__(key)
        step = f"{path}.{text}" if _PLAIN_KEY.fullmatch(text) else f"{path}[{text[:60]!a}]"
        _storable(text, step, "a key ")
        members.append((step, item))
    return members


def _storable(text: str, path: str, what: str) -> None:
    """Raise `InvalidRun` where PostgreSQL cannot hold a text."""
    if "\0" in text:
        raise InvalidRun(path, f"{what}must not contain a NUL character (at position {text.index(chr(0))})")
    found = None if text.isascii() else _SURROGATE.search(text)
    if found:
        raise InvalidRun(path, f"{what}must not contain a lone surrogate (at position {found.start()})")


def _conversion(value: Any) -> str:
    """The rule that a value of no JSON type breaks, with a way out where there is a usual one."""
    way = "dataclasses.asdict(value)" if dataclasses.is_dataclass(value) else _CONVERSIONS.get(_type(value))
    hint = f"; convert it first, for example with {way}" if way else "; convert it first"
    return f"must be dict, list, tuple, str, int, float, bool or None, not {_type(value)}{hint}"


def _type(value: Any) -> str:
    """The name of a value's type, printable."""
    return clean(type(value).__name__, 100)


def _number(text: str) -> int | float:
    """A JSON number with a fraction or an exponent: an int where it is whole, so that `1e2` equals `100`."""
    try:
        number = Decimal(text)
        whole = number.adjusted() < 1000 and number == number.to_integral_value()
    except DecimalException:
        return float(text)
    return int(number) if whole else float(text)
