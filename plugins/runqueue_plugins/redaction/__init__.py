"""The default redaction: takes secrets out of what is stored or logged.

It knows secrets by the name in front of them (`db_password=…`, `"api_key": "…"`, `Authorization: …`) and by their
own shape (tokens of well-known services, JWTs, PEM private keys, passwords in URLs). It cannot know a secret that has
neither.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from runqueue import InvalidRun, hookimpl
from runqueue_plugins.redaction.patterns import words_of
from runqueue_plugins.redaction.redactor import MARK, Redactor

__all__ = ["MARK", "PAYLOADS", "Redaction", "redact", "redact_json"]

PAYLOADS = ("input", "budget", "result", "checkpoint")
"""Places whose values handlers and callers need as they are. They are redacted only where that is asked for."""

_DEFAULT = Redactor()


def redact(text: str) -> str:
    """A text with `[redacted]` in the place of every secret that can be recognised. Never raises."""
    return _DEFAULT.text(text)


def redact_json(value: Any) -> Any:
    """A decoded JSON value: `redact` over its strings and keys, `[redacted]` for all under a secret's name.

    The value given is not changed; it is returned itself where it has no secret. None, True and False are kept in every
    place: they tell that something is set, and nothing more.
    """
    return _DEFAULT.json(value)


class Redaction:
    """Redacts errors, events, reasons and log lines; never tenants, kinds, queues and keys, which are identifiers.

    `fields`: further names, such as `ssn`, whose values are secrets, as a key of JSON and in `ssn=…`, `"ssn": "…"`.
    `patterns`: further regular expressions; all that one matches is a secret. They are tried on every text, so one that
    backtracks a lot makes everything slow. `payloads`: which of `input`, `budget`, `result` and `checkpoint` are
    redacted too, before they are stored: a handler then sees the redacted input, budget and checkpoint, and a caller
    the redacted result. Raises InvalidRun.
    """

    def __init__(self, fields: Sequence[str] = (), payloads: Sequence[str] = (), patterns: Sequence[str] = ()) -> None:
        for n, field in enumerate(_texts("fields", fields)):
            if not words_of(field) or len(field) > 100:
                raise InvalidRun(f"fields[{n}]", f"must be a name of at most 100 characters, not {field[:100]!r}")
        for n, place in enumerate(_texts("payloads", payloads)):
            if place not in PAYLOADS:
                raise InvalidRun(f"payloads[{n}]", f"must be one of {', '.join(PAYLOADS)}, not {place!r:.80}")
        compiled = [_compiled(f"patterns[{n}]", x) for n, x in enumerate(_texts("patterns", patterns))]
        self._redactor = Redactor(fields, compiled)
        self.redacts = frozenset({"error", "event", "reason", "log", *payloads})

    @hookimpl
    def runqueue_redact(self, value: Any, place: str) -> Any:
        """A text or a JSON value without its secrets; None, for no change, where the place is not to be redacted."""
        if place not in self.redacts:
            return None
        return self._redactor.text(value) if isinstance(value, str) else self._redactor.json(value)


def _texts(option: str, given: Sequence[str]) -> Sequence[str]:
    if not isinstance(given, (list, tuple)) or not all(isinstance(x, str) for x in given):
        raise InvalidRun(option, f"must be a list of texts, not {given!r:.80}")
    return given


def _compiled(option: str, pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidRun(option, f"is no regular expression: {error}") from None
    if compiled.search(""):
        raise InvalidRun(option, "must not match an empty text")
    return compiled
