"""Takes what the patterns find out of texts and JSON values.

Most texts have no secret. So a pattern is tried only where the text has one of the short pieces without which it cannot
match: to look for those takes a hundredth of the time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from runqueue_plugins.redaction import patterns

MARK = "[redacted]"
"""What stands in the place of a secret."""

_NAMES: tuple[str, ...] = (
    "authorization", "key", "bearer", "credential", "cookie", "pass", "pwd", "secret", "session", "token",
)  # fmt: skip
_QUERIES = ("key=", "sig=", "signature=", "jwt=", "credential=")
_SHAPES = (
    "sk-", "sk_", "rk_", "pk_", "whsec_", "gho_", "ghp_", "ghr_", "ghs_", "ghu_", "github_pat_", "glpat-", "xox",
    "xapp-", "akia", "asia", "abia", "acca", "aiza", "ya29.", "hf_", "gsk_", "r8_", "npm_", "pypi-", "xai-", "pplx-",
    "tvly-",
)  # fmt: skip

# What follows a name without being a secret: `password=None`, and prose such as `invalid token: expected a string`.
_ABSENT = "none null nil true false undefined missing required expired invalid"
_SAID = """
    a an and are argument as at be but by can cannot could does expected field flag for from had has have if in is it
    may must no not of on option or requires should str string that the this to too unexpected unknown value was were
    will with would
"""
_NOTHING = frozenset(_ABSENT.split())
_PROSE = _NOTHING | {"", *_SAID.split()}


class Step(NamedTuple):
    """A pattern, what replaces its matches, and what a casefolded text must have of: some piece out of each group."""

    pattern: re.Pattern[str]
    replace: str | Callable[[re.Match[str]], str]
    pieces: tuple[tuple[str, ...], ...]

    def may_match(self, folded: str) -> bool:
        """Whether it is worth trying."""
        return all(any(x in folded for x in group) for group in self.pieces)


class Redactor:
    """The built-in patterns, names of further fields whose values are secrets, and further patterns."""

    def __init__(self, fields: Sequence[str] = (), further: Sequence[re.Pattern[str]] = ()) -> None:
        self._names = [(patterns.SECRETS, _NAMES)]
        if fields:
            pieces = tuple(dict.fromkeys(patterns.words_of(x)[0].casefold() for x in fields))
            self._names.append((patterns.Names.spelt(fields), pieces))
        self._steps = [
            Step(patterns.PEM, MARK, (("-----begin",),)),
            Step(patterns.URL, _url, (("://",), ("@",))),
            Step(patterns.COOKIE, _kept, (("cookie",), (":",))),
            *(Step(x.value, _named, (pieces, ("=", ":"))) for x, pieces in self._names),
            *(Step(x.option, _option, (pieces, ("--",))) for x, pieces in self._names),
            Step(patterns.QUERY, _kept, (_QUERIES, ("?", "&"))),
            Step(patterns.SCHEME, _kept, (("bearer", "basic"),)),
            Step(patterns.JWT, MARK, (("eyj",),)),
            Step(patterns.SHAPE, MARK, (_SHAPES,)),
            Step(patterns.ROW, _kept, (("[parameters: ", "detail:"),)),
            *(Step(x, MARK, ()) for x in further),
        ]

    def text(self, text: str) -> str:
        """A text with `[redacted]` in the place of every secret that can be recognised."""
        return _applied(self._steps, str.__str__(text))

    def json(self, value: Any) -> Any:
        """A decoded JSON value, copied where it had secrets: in its strings and keys, or all under a secret's name.

        None, True and False are kept in every place: they tell that something is set, and nothing more.
        """
        folded = "\n".join(_strings(value)).casefold()
        steps = [x for x in self._steps if x.may_match(folded)]
        names = [x for x, pieces in self._names if any(piece in folded for piece in pieces)]
        return _copied(value, steps, names) if steps or names else value


def _copied(value: Any, steps: Sequence[Step], names: Sequence[patterns.Names]) -> Any:
    top: list[Any] = []
    todo: list[tuple[Any, Any]] = [([value], top)]
    while todo:
        source, target = todo.pop()
        pairs: Iterable[tuple[Any, Any]] = source.items() if isinstance(source, dict) else enumerate(source)
        for key, item in pairs:
            copy = item
            named = isinstance(key, str) and any(x.key.search(key) for x in names)
            if named and not (item is None or isinstance(item, bool)):
                copy = MARK
            elif isinstance(item, str):
                copy = _applied(steps, item)
            elif isinstance(item, dict | list | tuple):
                copy = {} if isinstance(item, dict) else []
                todo.append((item, copy))
            if isinstance(target, dict):
                target[_applied(steps, key)] = copy
            else:
                target.append(copy)
    return top[0]


def _strings(value: Any) -> list[str]:
    """All strings and keys inside a value."""
    found: list[str] = []
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, dict):
            found.extend(x for x in item if isinstance(x, str))
            todo.extend(item.values())
        elif isinstance(item, list | tuple):
            todo.extend(item)
    return found


def _applied(steps: Sequence[Step], text: str) -> str:
    if not steps:
        return text
    folded = text.casefold()
    for step in steps:
        if step.may_match(folded):
            text = step.pattern.sub(step.replace, text)
    return text


def _kept(match: re.Match[str]) -> str:
    """The first group stays, the rest was the secret."""
    return f"{match[1]}{MARK}"


def _option(match: re.Match[str]) -> str:
    return match[0] if _word(match[2]) in _PROSE else _kept(match)


def _named(match: re.Match[str]) -> str:
    """A name and its value: the name stays, with the quotes of the value and what closes the brackets around it."""
    whole, start, bare = match[0], match.start(), match["bare"]
    if bare is None:
        opening = whole[: match.end("open" if match["open"] else "inner") - start]
        return f"{opening}{MARK}{match['close'] or match['shut'] or ''}"
    if _word(bare) in (_NOTHING if "=" in match["join"] else _PROSE):
        return whole
    tail = bare[len(bare.rstrip(")}],;")) :]
    return f"{whole[: -len(bare)]}{MARK}{tail[bare[0] in '[{' :]}"


def _word(value: str) -> str:
    return value.strip(".,;:!?)]}").lower()


def _url(match: re.Match[str]) -> str:
    """One or more URLs without a space between: in each, the password before the last `@` in front of the query."""
    return "://".join(_without_password(part) for part in match[0].split("://"))


def _without_password(part: str) -> str:
    first = part.find("@")
    query = part.find("?", first) if first >= 0 else -1
    last = part.rfind("@", 0, query if query >= 0 else None)
    user, colon, password = part[: max(last, 0)].partition(":")
    if not colon or not password or "/" in user or "?" in user or "#" in user:
        return part
    port = re.match(r"\d{1,5}[/?#]", password)
    return part if port else f"{user}:{MARK}{part[last:]}"
