"""Redactions that break rules."""

from __future__ import annotations

from runqueue import hookimpl
from runqueue.testing import RedactionSuite

ODD = "test_no_text_is_too_odd"
JSON = "test_json_stays_json"
TWICE = "test_twice_is_as_good_as_once"
GIVEN = "test_what_is_given_is_not_changed"
STORED = "test_no_secret_of_an_error_is_stored"


class Redacts:
    """What `of` says, of texts and of JSON."""

    def __init__(self, texts=None, values=None):
        self.name, self._texts, self._values = "redacts", texts, values

    @hookimpl
    def runqueue_redact(self, value):
        found = self._texts if isinstance(value, str) else self._values
        return value if found is None else found(value)


def clear(value):
    if isinstance(value, dict):
        value.pop("password", None)
    return value


class Base(RedactionSuite):
    without = ("redaction",)


class TestRight(Base):
    plugins = (Redacts(lambda x: str(x).replace("hunter2", "***")),)
    secrets = (("the password is hunter2", "hunter2"),)
    fails = ()


class TestMarksAgain(Base):
    plugins = (Redacts(lambda x: f"<{x}>"),)
    fails = (TWICE,)


class TestEncodes(Base):
    plugins = (Redacts(lambda x: x.encode().decode()),)
    fails = (ODD,)


class TestMakesText(Base):
    plugins = (Redacts(None, lambda x: str(type(x)) if isinstance(x, dict | list) else x),)
    fails = (JSON,)


class TestChangesWhatItIsGiven(Base):
    plugins = (Redacts(None, clear),)
    fails = (GIVEN,)


class TestForgets(Base):
    plugins = (Redacts(lambda x: str(x).replace("password=hunter2", "***")),)
    secrets = (("the password is hunter2", "hunter2"),)
    fails = (STORED,)
