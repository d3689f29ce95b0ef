"""The default redaction: takes secrets out of text before it is stored or logged.

It knows secrets by the name in front of them (`db_password=…`, `"api_key": "…"`, `Authorization: …`) and by their
own shape (tokens of well-known services, JWTs, PEM private keys, passwords in URLs). It cannot know a secret that has
neither. Every pattern reads a text about once, so the time grows with the length, whatever the text is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from runqueue import hookimpl

MARK = "[redacted]"
"""What stands in the place of a secret."""

# The ends of names that announce a secret, without their first letter: the search leaps from one such letter to the
# next. What stands before, as in `db_password`, does not matter.
_ENDS = {
    "a": r"uthorization | pi[ _-]?key | ccess[ _-]?key(?:[_-]?id)? | ccount[ _-]?key",
    "b": r"earer",
    "c": r"redentials? | ookies? | lient[ _-]?key",
    "e": r"ncryption[ _-]?key",
    "m": r"aster[ _-]?key",
    "p": r"ass(?:word|wd|phrase|code)s? | wd | (?<=[_-]p)ass | rivate[ _-]?key",
    "s": r"ecrets? | (?:ecret|ervice|hared|igning|ubscription)[ _-]?key | (?<![a-z]s)ession(?:[_-]?(?:id|key))?",
    "t": r"oken",
}
_NAME = (
    f"[{''.join(_ENDS)}{''.join(_ENDS).upper()}](?i:(?:"
    + " | ".join(f"(?<={first})(?:{rest})" for first, rest in _ENDS.items())
    + r")(?:[_-]?hash)?(?:[_-]?\d{1,3})?(?![a-z0-9]))"
)

# A value without quotes: up to a space, a quote that closes, or a separator in front of the next name.
_BARE = r"""(?:
    [^\s"'&,;]
  | [&,;](?![ \t]{0,8}["']?[\w.%-]{1,64}["']?[ \t]{0,8}[=:])
  | ["'](?![\s,;:.)}\]>\\]|\Z)
)"""

_JOIN = r"""(?:[ ]provided)?\\{0,3}["']?\]?[ \t]{0,16}(?:=>|:=|==|[=:])[ \t]{0,16}"""

_VALUE = rf"""(?:
    (?P<open>[bfru]{{0,2}}(?P<quote>["'])) (?: (?:[^\\"']|\\.|(?!(?P=quote))["'])*+ (?P<close>(?P=quote)) | [^\r\n]*+ )
  | (?P<slash>\\{{1,3}})(?P<inner>["'])
        (?: (?:[^\\]|(?!(?<!\\)(?P=slash)(?P=inner))\\)*+ (?P<shut>(?P=slash)(?P=inner)) | [^\r\n]*+ )
  | (?P<bare>
        (?:digest|aws4-[a-z0-9-]{{1,20}}|hawk|oauth|signature)[ \t]{{1,8}}[^\r\n]++
      | (?:bearer|basic|token|negotiate|apikey)[ \t]{{1,8}}{_BARE}++
      | (?:\[[^\]]{{0,512}}+\]|\{{[^}}]{{0,512}}+\}}){_BARE}*+
      | {_BARE}++
    )
)"""

_FLAGS = re.VERBOSE | re.DOTALL
_NAMED = re.compile(rf"{_NAME}(?P<join>{_JOIN})(?i:{_VALUE})", _FLAGS)
_SECRET_NAME = re.compile(rf"{_NAME}\s*\Z", _FLAGS)
_OPTION = re.compile(rf"""((?<![\w-])--[\w-]{{0,40}}?{_NAME}(?:[ ]|["'],[ ]?["']))([^\s"',]++)""", _FLAGS)
_COOKIE = re.compile(r"""(cookie["']?\s{0,4}:[ \t]{0,8})(?!["'])[^\s;]++(?:;[ \t]{0,8}[^\s;]++)*""", re.IGNORECASE)
_QUERY = re.compile(r"""([?&](?:key|sig|signature|jwt|x-amz-(?:signature|credential))=)[^&\s"'<>]++""", re.IGNORECASE)
_SCHEME = re.compile(
    r"""\b((?i:bearer|basic)[ \t]{1,8})"""
    r"""(?!(?:realm|error|scope|charset)=|[A-Z]?[a-z]{0,20}[.,;:!?)\]"']{0,3}(?:\s|\Z))[^\s"',;]++"""
)
_SHAPE = re.compile(
    r"""(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))(?:
        sk-(?:(?=[a-z_-]*[A-Z0-9])[\w-]{8,}+|[\w-]{20,}+)
      | (?:sk|rk|pk)_(?:live|test)_\w{8,}+ | whsec_\w{16,}+
      | gh[opsru]_\w{16,}+ | github_pat_\w{20,}+ | glpat-[\w-]{16,}+
      | xox[a-z]-[\w-]{8,}+ | xapp-[\w-]{16,}+
      | A(?:KI|SI|BI|CC)A[0-9A-Z]{12,}+ | AIza[\w-]{30,}+ | ya29\.[\w-]{16,}+
      | hf_\w{16,}+ | gsk_\w{16,}+ | r8_\w{16,}+ | npm_\w{20,}+ | pypi-[\w-]{16,}+ | (?:xai|pplx|tvly)-[\w-]{16,}+
    )""",
    re.VERBOSE | re.ASCII,
)
_JWT = re.compile(r"(?:(?<![\w-])|(?<=\\[nrt]))eyJ[\w-]{8,}+\.[\w-]{4,}+(?:\.[\w-]*+){0,3}", re.ASCII)
_PEM = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY.*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,8}-----|\Z)", re.DOTALL
)
_URL = re.compile(r"""://(?:[^\s"'<>]|["'](?![\s,;:)}\]>\\]|\Z))++""")
_ROW = re.compile(r"(\[parameters: |DETAIL:[ \t]{1,8})[^\r\n]++")

# What follows a name without being a secret: `password=None`, and prose such as `invalid token: expected a string`.
_ABSENT = "none null nil true false undefined missing required expired invalid"
_SAID = """
    a an and are argument as at be but by can cannot could does expected field flag for from had has have if in is it
    may must no not of on option or requires should str string that the this to too unexpected unknown value was were
    will with would
"""
_NOTHING = frozenset(_ABSENT.split())
_PROSE = _NOTHING | {"", *_SAID.split()}


@hookimpl
def runqueue_redact(value: Any) -> Any:
    """The default of this hook: `redact` for a text, `redact_json` for anything else."""
    return redact(value) if isinstance(value, str) else redact_json(value)


def redact(text: str) -> str:
    """A text with `[redacted]` in the place of every secret that can be recognised. Never raises."""
    text = _PEM.sub(MARK, str.__str__(text))
    text = _URL.sub(_url, text)
    text = _COOKIE.sub(_kept, text)
    text = _NAMED.sub(_named, text)
    text = _OPTION.sub(_option, text)
    text = _QUERY.sub(_kept, text)
    text = _SCHEME.sub(_kept, text)
    text = _JWT.sub(MARK, text)
    text = _SHAPE.sub(MARK, text)
    return _ROW.sub(_kept, text)


def redact_json(value: Any) -> Any:
    """A copy of a decoded JSON value: `redact` over its strings and keys, `[redacted]` for all under a secret's name.

    None, True and False are kept in every place: they tell that something is set, and nothing more.
    """
    top: list[Any] = []
    todo: list[tuple[Any, Any]] = [([value], top)]
    while todo:
        source, target = todo.pop()
        pairs: Iterable[tuple[Any, Any]] = source.items() if isinstance(source, dict) else enumerate(source)
        for key, item in pairs:
            copy = item
            if isinstance(key, str) and _SECRET_NAME.search(key) and not (item is None or isinstance(item, bool)):
                copy = MARK
            elif isinstance(item, str):
                copy = redact(item)
            elif isinstance(item, dict | list | tuple):
                copy = {} if isinstance(item, dict) else []
                todo.append((item, copy))
            if isinstance(target, dict):
                target[redact(key)] = copy
            else:
                target.append(copy)
    return top[0]


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
