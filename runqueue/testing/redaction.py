"""What every redaction must keep."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any, ClassVar, get_args

import pytest

from runqueue.hooks.manager import WITHHELD
from runqueue.hooks.specs import Place
from runqueue.queue import RunQueue
from runqueue.testing.rig import Rig
from runqueue.testing.suite import PluginSuite

PLACES: tuple[Place, ...] = get_args(Place)


class _Text(str):
    """A text of another type than `str`."""


TEXTS = [
    "", " ", "\x00", "\ud800 alone", "\u202e turned", "🐘" * 50, "'\"\\", "=" * 2000, "password", "password=",
    "key: value, key: value", "{'a': [1, 2", "a\nb\r\nc\td", _Text("password=hunter2"), "://@:@/", "eyJ" * 500,
    "-----BEGIN PRIVATE KEY-----", "bearer " * 300, "x" * 100_000,
]  # fmt: skip
VALUES: list[Any] = [
    None, True, 0, -1.5, 10**400, [], {}, "", {"a": None, "b": [1, "x", {"c": False}]}, {"password": None},
    {"": "", "🐘": "\ud800"}, [[[[[[["deep"]]]]]]], {"tokens": 512, "n": [1] * 1000}, {"\x00": "password=x"},
]  # fmt: skip


class RedactionSuite(PluginSuite):
    """What is stored is what was given, without secrets: and a redaction that fails hides more than it should."""

    secrets: ClassVar[Sequence[tuple[str, str]]] = ()
    """Texts of errors, each with the part of it that must be stored nowhere."""

    def test_no_text_is_too_odd(self, offline: RunQueue) -> None:
        """It raises for none, and a text stays one."""
        for place in PLACES:
            for text in TEXTS:
                left = offline.core.ctx.hooks.redact(text, place)
                assert isinstance(left, str), f"{place}: {text[:50]!r} became a {type(left).__name__}"
                assert left != WITHHELD, f"{place}: it raised for {text[:50]!r}; the log says what"

    def test_json_stays_json(self, offline: RunQueue) -> None:
        """It raises for none, an object stays an object and a list a list, and all of it can be encoded."""
        for place in PLACES:
            for value in VALUES:
                left = offline.core.ctx.hooks.redact(copy.deepcopy(value), place)
                assert left != WITHHELD, f"{place}: it raised for {value!r:.50}; the log says what"
                json.dumps(left, allow_nan=False)
                if isinstance(value, dict | list):
                    assert type(left) is type(value), f"{place}: {value!r:.50} became a {type(left).__name__}"

    def test_twice_is_as_good_as_once(self, offline: RunQueue) -> None:
        """What was redacted may be redacted again, on its way to another place."""
        redact = offline.core.ctx.hooks.redact
        for place in PLACES:
            for value in (*TEXTS, *VALUES, *(text for text, _ in self.secrets)):
                once = redact(copy.deepcopy(value), place)
                assert redact(copy.deepcopy(once), place) == once, f"{place}: {value!r:.50}"

    def test_what_is_given_is_not_changed(self, offline: RunQueue) -> None:
        """It is the application's own value, which it goes on to use."""
        told = [{"a": text, "b": [text]} for text, _ in self.secrets]
        for place in PLACES:
            for value in (*VALUES, *told):
                before = copy.deepcopy(value)
                offline.core.ctx.hooks.redact(value, place)
                assert value == before, f"{place}: {value!r:.50}"

    def test_no_secret_of_an_error_is_stored(self, rig: Rig) -> None:
        """In no row of any table; `secrets` says which."""
        if not self.secrets:
            pytest.skip("the class names no secrets")
        rig.fill(len(self.secrets), max_attempts=2)
        for claimed, (text, _) in zip(rig.queue.claim("w", limit=len(self.secrets)), self.secrets, strict=True):
            rig.queue.fail(claimed.lease, RuntimeError(text))
        rows = [row for name, rows in rig.everything().items() for row in rows if name != "agent_run_rules"]
        assert len(rows) >= 2 * len(self.secrets)
        for text, secret in self.secrets:
            assert secret in text
            assert not [row for row in rows if secret in row], f"{secret!r} is stored"
