"""What secrets look like: the names in front of them, and their own shapes.

Every pattern reads a text about once, so the time grows with the length, whatever the text is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

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
_WORD = re.compile(r"[^\W_]+")


def words_of(field: str) -> list[str]:
    """The words of a field's name, without what joins them."""
    return _WORD.findall(field)


class Names(NamedTuple):
    """The patterns for names of secrets: a name and its value in a text, after an option's dashes, and as a key."""

    value: re.Pattern[str]
    option: re.Pattern[str]
    key: re.Pattern[str]

    @classmethod
    def of(cls, name: str) -> Names:
        """Those for a verbose pattern of names."""
        return cls(
            re.compile(rf"{name}(?P<join>{_JOIN})(?i:{_VALUE})", _FLAGS),
            re.compile(rf"""((?<![\w-])--[\w-]{{0,40}}?{name}(?:[ ]|["'],[ ]?["']))([^\s"',]++)""", _FLAGS),
            re.compile(rf"{name}\s*\Z", _FLAGS),
        )

    @classmethod
    def spelt(cls, fields: Sequence[str]) -> Names:
        """Those for the names of fields, however their words are joined: `date_of_birth`, `dateOfBirth`."""
        words = (r"[ _.-]?".join(map(re.escape, words_of(x))) for x in fields)
        return cls.of(rf"(?:(?<![A-Za-z0-9])|(?<=[a-z0-9])(?=[A-Z]))(?i:(?:{'|'.join(words)})(?![a-z0-9]))")


SECRETS = Names.of(_NAME)
COOKIE = re.compile(r"""(cookie["']?\s{0,4}:[ \t]{0,8})(?!["'])[^\s;]++(?:;[ \t]{0,8}[^\s;]++)*""", re.IGNORECASE)
QUERY = re.compile(r"""([?&](?:key|sig|signature|jwt|x-amz-(?:signature|credential))=)[^&\s"'<>]++""", re.IGNORECASE)
SCHEME = re.compile(
    r"""\b((?i:bearer|basic)[ \t]{1,8})"""
    r"""(?!(?:realm|error|scope|charset)=|[A-Z]?[a-z]{0,20}[.,;:!?)\]"']{0,3}(?:\s|\Z))[^\s"',;]++"""
)
SHAPE = re.compile(
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
JWT = re.compile(r"(?:(?<![\w-])|(?<=\\[nrt]))eyJ[\w-]{8,}+\.[\w-]{4,}+(?:\.[\w-]*+){0,3}", re.ASCII)
PEM = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY.*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,8}-----|\Z)", re.DOTALL
)
URL = re.compile(r"""://(?:[^\s"'<>]|["'](?![\s,;:)}\]>\\]|\Z))++""")
ROW = re.compile(r"(\[parameters: |DETAIL:[ \t]{1,8})[^\r\n]++")
