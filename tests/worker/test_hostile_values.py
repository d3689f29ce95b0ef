"""Whatever a handler raises, returns, emits or saves, its run ends in time, with an error that can be printed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from support.here import running

from runqueue import InvalidRun, RunQueue, Worker

BAD_TEXTS = {"NUL": "a\x00b", "surrogate": "a\ud800b", "escape": "\udc80", "both": "\x00\ud800"}


class _Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class _Endless(Exception):
    def __str__(self) -> str:
        return "x" * 10_000_000


class _NoText(Exception):
    def __str__(self) -> str:
        return None  # type: ignore[return-value]


class _Vicious(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)

    __repr__ = __str__


def _cyclic() -> BaseException:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    return one


def _noted() -> BaseException:
    error = ValueError("with notes")
    error.add_note("\x00\ud800")
    return error


ERRORS: dict[str, Callable[[], BaseException]] = {
    **{f"text {name}": (lambda text=text: ValueError(text)) for name, text in BAD_TEXTS.items()},
    "bytes": lambda: ValueError(b"\x00\xff"),
    "str raises": _Silent,
    "str is 10 MB": _Endless,
    "str is None": _NoText,
    "str exits": _Vicious,
    "class name": lambda: type("A\x00\ud800", (Exception,), {})("text"),
    "group": lambda: ExceptionGroup("a\x00", [ValueError("\ud800"), _Silent(), ExceptionGroup("b", [_Endless()])]),
    "cyclic cause": _cyclic,
    "notes": _noted,
}

VALUES: dict[str, Any] = {
    **{f"text {name}": {"deep": [text]} for name, text in BAD_TEXTS.items()},
    "key": {"\x00": 1},
    "NaN": [math.nan],
    "infinity": math.inf,
    "bytes": b"raw",
    "object": object(),
    "10 MB": "x" * 10_000_000,
    "huge integer": 10**5000,
}

DEEP: list[Any] = []
for _ in range(5000):
    DEEP = [DEEP]
VALUES["deep"] = DEEP


def test_errors_that_cannot_be_stored_end_their_run(plain: RunQueue) -> None:
    @plain.handler("raise")
    def raise_(run: Any) -> None:
        raise ERRORS[run.input]()

    with running(Worker(plain)):
        runs = {name: plain.enqueue("raise", name, tenant_id="acme", max_attempts=1) for name in ERRORS}
        for name, run in runs.items():
            dead = plain.wait(run.id, 10)
            assert (name, dead.status) == (name, "dead")
            for text in (dead.error_code, dead.error_message):
                assert text, name
                assert "\x00" not in text
                assert len(text.encode()) <= plain.settings.error_limit, name


@pytest.mark.parametrize("verb", ["return", "emit", "checkpoint", "enqueue"])
def test_values_that_cannot_be_stored_are_named_and_end_their_run(verb: str, plain: RunQueue) -> None:
    refused: dict[str, InvalidRun] = {}

    @plain.handler("store")
    def store(run: Any) -> Any:
        value = VALUES[run.input]
        try:
            with run.transaction() as tx:
                if verb == "emit":
                    tx.emit("progress", value)
                elif verb == "checkpoint":
                    tx.save_checkpoint(value)
                elif verb == "enqueue":
                    tx.enqueue("child", value)
        except InvalidRun as error:
            refused[run.input] = error
            raise
        return value if verb == "return" else None

    field = {"return": "result", "emit": "event", "checkpoint": "checkpoint", "enqueue": "input"}[verb]
    with running(Worker(plain)):
        runs = {name: plain.enqueue("store", name, tenant_id="acme", max_attempts=1) for name in VALUES}
        for name, run in runs.items():
            dead = plain.wait(run.id, 10)
            assert (name, dead.status, dead.error_code) == (name, "dead", "InvalidRun")
            assert str(dead.error_message).startswith(field), (name, dead.error_message)
    assert set(refused) == (set() if verb == "return" else set(VALUES))
    assert not plain.list(kind="child").runs


def test_innocent_texts_survive_unharmed(plain: RunQueue) -> None:
    text = "\\u0000 \\ud800 😀 \u202e \x7f \x1b[31m é e\u0301"

    @plain.handler("echo")
    def echo(run: Any) -> Any:
        with run.transaction() as tx:
            tx.emit("echo", run.input)
            tx.save_checkpoint(run.input)
        return run.input

    with running(Worker(plain)):
        run = plain.wait(plain.enqueue("echo", {text: text}, tenant_id="acme").id, 10)
    assert run.result == {text: text}
    assert [event.data for event in plain.events(run.id)] == [{text: text}]
