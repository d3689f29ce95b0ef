"""What may be stored, what is refused and in which words, and what is told of an exception."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import json
import types
import unicodedata
import uuid
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any

import psycopg.errors
import pytest
import sqlalchemy
import sqlalchemy.exc
from hypothesis import example, given
from hypothesis import strategies as st

from runqueue.errors import InvalidRun
from runqueue.failures import describe
from runqueue.types import RunStatus, Undecodable
from runqueue.values import CUT, clean, decode, digest, encode, integer, moment, name, seconds

LIMIT = 256 * 1024


def refused(call: Any, *args: Any, **kwargs: Any) -> tuple[str, str]:
    """The field and the rule of the error that a call ends in."""
    with pytest.raises(InvalidRun) as caught:
        call(*args, **kwargs)
    return caught.value.field, caught.value.rule


def refused_value(value: Any, **kwargs: Any) -> tuple[str, str]:
    return refused(encode, value, **{"field": "input", "limit": LIMIT} | kwargs)


def nested(levels: int) -> Any:
    value: Any = "bottom"
    for _ in range(levels):
        value = [value]
    return value


storable = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(storable, max_size=20)
)
values = st.recursive(
    scalars,
    lambda x: st.lists(x, max_size=4) | st.dictionaries(st.text(storable, max_size=8), x, max_size=4),
    max_leaves=12,
)


class TestEncode:
    @given(values)
    def test_round_trip_is_exact(self, value: Any) -> None:
        back = decode(encode(value, field="input", limit=LIMIT))
        assert back == value
        assert repr(back) == repr(value)

    @given(values)
    def test_size_is_in_bytes(self, value: Any) -> None:
        text = encode(value, field="input", limit=LIMIT)
        size = len(text.encode())
        assert encode(value, field="input", limit=size) == text
        assert refused_value(value, limit=size - 1) == (
            "input",
            f"must be at most {size - 1} bytes as JSON, not {size}",
        )

    def test_the_text_about_a_nul_is_no_nul(self) -> None:
        value = {"\\u0000": ["\\u0000", "\\\\u0000", "a \\ud800 b"]}
        assert decode(encode(value, field="input", limit=LIMIT)) == value

    @pytest.mark.parametrize(
        ("value", "path", "rule"),
        [
            ({"order": {"items": [0, 0, 0, {"name": "a\0b"}]}}, "input.order.items[3].name", "must not contain a NUL"),
            ("\0", "input", "must not contain a NUL character (at position 0)"),
            ({"a\0": 1}, "input['a\\x00']", "a key must not contain a NUL character (at position 1)"),
            (["ok", "a\ud800b"], "input[1]", "must not contain a lone surrogate (at position 1)"),
            ({"x": "\udc80"}, "input.x", "must not contain a lone surrogate (at position 0)"),
            (["\ud83d\ude00"], "input[0]", "must not contain a lone surrogate"),
            ({"\ud800": 1}, "input['\\ud800']", "a key must not contain a lone surrogate"),
            ({"x": [float("nan")]}, "input.x[0]", "a number must be finite, not NaN or infinity"),
            (float("inf"), "input", "a number must be finite"),
            (-float("inf"), "input", "a number must be finite"),
            ({"a": {1: "x"}}, "input.a", "keys must be strings, not int"),
            ({"a": {1.5: "x"}}, "input.a", "keys must be strings, not float"),
            ({True: "x"}, "input", "keys must be strings, not bool"),
            ([{None: "x"}], "input[0]", "keys must be strings, not NoneType"),
            ({("a", "b"): "x"}, "input", "keys must be strings, not tuple"),
            ({"n": 10**1000}, "input.n", "an integer must have at most 1000 digits"),
            ({"n": -(10**5000)}, "input.n", "an integer must have at most 1000 digits"),
            ({"odd key": [b""]}, "input['odd key'][0]", "not bytes; convert it first, for example with base64"),
            (
                {"at": datetime(2020, 1, 1, tzinfo=UTC)},
                "input.at",
                "not datetime; convert it first, for example with v",
            ),
            ({"at": date(2020, 1, 1)}, "input.at", "not date; convert it first, for example with value.isoformat()"),
            ([uuid.UUID(int=1)], "input[0]", "not UUID; convert it first, for example with str(value)"),
            ([Decimal(1)], "input[0]", "not Decimal; convert it first, for example with str(value)"),
            ({"s": {1}}, "input.s", "not set; convert it first, for example with sorted(value)"),
            (
                object(),
                "input",
                "must be dict, list, tuple, str, int, float, bool or None, not object; convert it first",
            ),
            (type("A\x1b", (), {})(), "input", "not A\ufffd;"),
            (types.SimpleNamespace(__class__=dict), "input", "not SimpleNamespace;"),
            ({"a": "\0", "b": float("nan")}, "input.a", "must not contain a NUL"),
        ],
    )
    def test_refusals_name_the_place_and_the_rule(self, value: Any, path: str, rule: str) -> None:
        assert refused_value(value)[0] == path
        assert rule in refused_value(value)[1]

    def test_dataclasses_are_converted_by_the_user(self) -> None:
        @dataclasses.dataclass
        class Order:
            id: int

        assert refused_value({"order": Order(1)})[1].endswith(
            "not Order; convert it first, for example with dataclasses.asdict(value)"
        )

    def test_an_error_never_quotes_the_value(self) -> None:
        for value in ({"password": "S3cr3t\0"}, "S3cr3t\ud800", {"k": [b"S3cr3t"]}, "S3cr3t" * LIMIT):
            assert "S3cr3t" not in str(refused_value(value))

    def test_subclasses_are_written_as_their_base(self) -> None:
        class Level(enum.IntEnum):
            HIGH = 3

        class Many(dict):  # type: ignore[type-arg]
            pass

        value = Many({RunStatus.DONE: [Level.HIGH, RunStatus.DEAD, types.MappingProxyType({})][:2], "t": (1, (2,))})
        assert encode(value, field="input", limit=LIMIT) == '{"done":[3,"dead"],"t":[1,[2]]}'

    @pytest.mark.parametrize("depth", [0, 1, 64])
    def test_depth(self, depth: int) -> None:
        assert decode(encode(nested(depth), field="input", limit=LIMIT, depth=depth)) == nested(depth)
        rule = f"must be nested at most {depth} deep"
        assert refused_value(nested(depth + 1), depth=depth) == ("input" + "[0]" * depth, rule)

    def test_depth_is_checked_before_recursion_hurts(self) -> None:
        assert refused_value(nested(100_000))[1] == "must be nested at most 64 deep"

    def test_depth_beyond_what_this_python_can_write(self) -> None:
        try:
            text = encode(nested(3000), field="input", limit=LIMIT, depth=4000)
        except InvalidRun as error:
            assert str(error) == "input: cannot be written as JSON (RecursionError)"  # noqa: PT017 - depends on Python
        else:
            assert len(text) == 6008

    def test_cycles(self) -> None:
        loop: list[Any] = [1]
        loop.append({"again": loop})
        assert refused_value({"x": loop}) == ("input.x[1].again", "must not contain itself")
        own: dict[str, Any] = {}
        own["me"] = own
        assert refused_value(own) == ("input.me", "must not contain itself")

    def test_sharing_is_no_cycle(self) -> None:
        shared = [1]
        assert encode([shared, {"a": shared}], field="input", limit=LIMIT) == '[[1],{"a":[1]}]'

    def test_a_small_value_that_would_be_endless_text(self) -> None:
        bomb: Any = "x"
        for _ in range(60):
            bomb = [bomb, bomb]
        rule = "must be at most 1000 bytes as JSON, not more than 4000"
        assert refused_value(bomb, limit=1000) == ("input", rule)
        long = "x" * 10**6
        for value in ([long] * 100_000, [{long: 1}] * 100_000, [[[]] * 10**6] * 10**6):
            assert refused_value(value, limit=1000) == ("input", rule)

    def test_largest_integer(self) -> None:
        assert decode(encode(10**1000 - 1, field="input", limit=LIMIT)) == 10**1000 - 1
        assert decode(encode(1 - 10**1000, field="input", limit=LIMIT)) == 1 - 10**1000

    def test_objects_that_pretend(self) -> None:
        class Fake:
            @property
            def __class__(self) -> Any:
                return dict

            @__class__.setter
            def __class__(self, _: Any) -> None: ...

        assert "not Fake" in refused_value([Fake()])[1]

    def test_empty_values(self) -> None:
        assert [encode(x, field="input", limit=9) for x in ({}, [], (), "", None, False, 0)] == [
            "{}", "[]", "[]", '""', "null", "false", "0",
        ]  # fmt: skip


class TestDecode:
    def test_none(self) -> None:
        assert decode(None) is None
        assert decode("null") is None

    @pytest.mark.parametrize("text", ["", "{", "9" * 5000, "[1,]", '"\n"'])
    def test_unreadable(self, text: str) -> None:
        assert isinstance(decode(text), Undecodable)

    def test_nested_too_deep(self) -> None:
        assert decode("[" * 200_000 + "]" * 200_000) == Undecodable("nested too deep")

    def test_the_reason_does_not_quote_the_value(self) -> None:
        assert "S3cr3t" not in decode('{"a": S3cr3t}').reason


class TestDigest:
    @given(values)
    def test_is_the_same_for_every_spelling(self, value: Any) -> None:
        text = encode(value, field="input", limit=LIMIT)
        assert digest(text) == digest(json.dumps(value, indent=1, sort_keys=True)) == digest(text)
        assert len(digest(text)) == 64

    @pytest.mark.parametrize(
        "texts",
        [
            ('{"a":1,"b":[2,{"c":3,"d":4}]}', '{ "b": [2, {"d": 4, "c": 3}], "a": 1 }'),
            ("100", "1e2", "100.0", "1.00e+2"),
            ("1e23", "100000000000000000000000"),
            ("0", "-0.0", "0.000"),
            ("0.1", "0.10", "1e-1"),
            ('"é"', '"\\u00e9"'),
            ("1e308", "1" + "0" * 308),
        ],
    )
    def test_equal(self, texts: tuple[str, ...]) -> None:
        assert len({digest(text) for text in texts}) == 1

    def test_different(self) -> None:
        texts = [
            "1",
            '"1"',
            "[1]",
            "true",
            '"true"',
            "null",
            "{}",
            "[]",
            '""',
            '{"a":1}',
            '{"a":2}',
            "[1,2]",
            "[2,1]",
            "1.5",
        ]
        texts += [
            '"é"',
            json.dumps(unicodedata.normalize("NFD", "é")),
            "1e999",
            "1e-400",
            "123456789012345678",
            "123456789012345679",
        ]
        assert len({digest(text) for text in texts}) == len(texts)

    def test_huge_exponents_cost_nothing(self) -> None:
        assert digest("[1e999999999, 1e-999999999, 1e99999999999999999999]")

    def test_no_json(self) -> None:
        with pytest.raises(ValueError):
            digest("{")


class TestName:
    @pytest.mark.parametrize(
        "value",
        [
            "acme",
            "Acme",
            " a ",
            "a\nb",
            "'",
            '"; DROP TABLE runs;--',
            "$$",
            ":name",
            "%(x)s",
            "\\",
            "日" * 85,
            "😀",
            "שלום",
            "e\u0301",
            "\x01",
        ],
    )
    def test_kept_literally(self, value: str) -> None:
        assert name(value, field="tenant_id") == value

    @pytest.mark.parametrize(
        ("value", "rule"),
        [
            ("", "must not be empty"),
            ("a\0", "must not contain a NUL character (at position 1)"),
            ("\ud800", "must not contain a lone surrogate (at position 0)"),
            ("a" * 256, "must be at most 255 bytes in UTF-8, not 256"),
            ("日" * 86, "must be at most 255 bytes in UTF-8, not 258"),
            (None, "must be a string, not NoneType"),
            (1, "must be a string, not int"),
            (b"a", "must be a string, not bytes"),
        ],
    )
    def test_refused(self, value: Any, rule: str) -> None:
        assert refused(name, value, field="tenant_id") == ("tenant_id", rule)

    def test_limit(self) -> None:
        assert name("日" * 3, field="key", limit=9) == "日日日"
        assert refused(name, "日日日!", field="key", limit=9) == ("key", "must be at most 9 bytes in UTF-8, not 10")

    def test_enums_become_plain_strings(self) -> None:
        assert type(name(RunStatus.DONE, field="queue")) is str

    @given(st.text(st.characters()))
    def test_accepts_or_refuses(self, value: str) -> None:
        if value and "\0" not in value and not any("\ud800" <= x <= "\udfff" for x in value):
            assert name(value, field="kind", limit=10_000) == value
        else:
            assert refused(name, value, field="kind", limit=10_000)[0] == "kind"


class TestNumbers:
    def test_integer(self) -> None:
        class Level(enum.IntEnum):
            HIGH = 3

        assert integer(0, field="limit", low=0, high=9) == 0
        assert type(integer(Level.HIGH, field="limit", low=0, high=9)) is int

    @pytest.mark.parametrize(
        ("value", "rule"),
        [
            (True, "must be a whole number, not bool"),
            (1.0, "must be a whole number, not float"),
            ("1", "must be a whole number, not str"),
            (None, "must be a whole number, not NoneType"),
            (-1, "must be from 0 to 9, not -1"),
            (10, "must be from 0 to 9, not 10"),
            pytest.param(10**5000, "must be from 0 to 9", id="huge"),
        ],
    )
    def test_integer_refused(self, value: Any, rule: str) -> None:
        assert refused(integer, value, field="limit", low=0, high=9) == ("limit", rule)

    @pytest.mark.parametrize(
        ("value", "expected"),
        [(0, 0.0), (-0.0, 0.0), (1.5, 1.5), (timedelta(minutes=1), 60.0), (60, 60.0), (315576000, 315576000.0)],
    )
    def test_seconds(self, value: Any, expected: float) -> None:
        found = seconds(value, field="delay")
        assert repr(found) == repr(expected)

    @pytest.mark.parametrize(
        ("value", "rule"),
        [
            (True, "must be seconds or a timedelta, not bool"),
            ("1", "must be seconds or a timedelta, not str"),
            (None, "must be seconds or a timedelta, not NoneType"),
            (Decimal(1), "must be seconds or a timedelta, not Decimal"),
            (-1, "must be from 0 to 315576000 seconds, not -1"),
            (timedelta(seconds=-1), "must be from 0 to 315576000 seconds, not -1"),
            (315576001, "must be from 0 to 315576000 seconds, not 315576001"),
            (timedelta.max, "must be from 0 to 315576000 seconds, not 86400000000000"),
            (float("nan"), "must be from 0 to 315576000 seconds"),
            (float("inf"), "must be from 0 to 315576000 seconds"),
            (-float("inf"), "must be from 0 to 315576000 seconds"),
            pytest.param(10**5000, "must be from 0 to 315576000 seconds", id="huge"),
        ],
    )
    def test_seconds_refused(self, value: Any, rule: str) -> None:
        field, found = refused(seconds, value, field="delay")
        assert (field, found) == ("delay", rule)

    def test_seconds_have_a_bound_of_the_callers_choice(self) -> None:
        assert seconds(5, field="x", high=5) == 5
        assert refused(seconds, 5.5, field="x", high=5) == ("x", "must be from 0 to 5 seconds, not 5.5")


class TestMoment:
    def test_is_given_back_in_utc(self) -> None:
        when = datetime(2026, 3, 29, 3, 30, tzinfo=timezone(timedelta(hours=2)))
        assert moment(when, field="available_at") == when
        assert moment(when, field="available_at").tzinfo is UTC

    @pytest.mark.parametrize(
        "value",
        [
            datetime.max.replace(tzinfo=UTC),
            datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))),
            datetime.min.replace(tzinfo=UTC),
            datetime.min.replace(tzinfo=timezone(timedelta(hours=12))),
            datetime(1969, 12, 31, 23, 59, tzinfo=UTC),
            datetime(1970, 1, 1, 0, 59, tzinfo=timezone(timedelta(hours=1))),
            datetime(9999, 1, 1, tzinfo=UTC),
        ],
    )
    def test_out_of_range(self, value: datetime) -> None:
        assert refused(moment, value, field="available_at") == (
            "available_at",
            "must be in the years 1970 to 9998, in UTC",
        )

    def test_ends_of_the_range(self) -> None:
        for when in (datetime(1970, 1, 1, tzinfo=UTC), datetime(9998, 12, 31, 23, 59, tzinfo=UTC)):
            assert moment(when, field="x") == when

    def test_naive(self) -> None:
        class Nowhere(tzinfo):
            def utcoffset(self, _: datetime | None) -> None:
                return None

        for zone in (None, Nowhere()):
            field, rule = refused(moment, datetime(2026, 1, 1, tzinfo=zone), field="available_at")
            assert field == "available_at"
            assert rule.startswith("must have a time zone")

    @pytest.mark.parametrize("value", [None, 0, "2026-01-01T00:00:00Z", date(2026, 1, 1)])
    def test_other_types(self, value: Any) -> None:
        assert refused(moment, value, field="x") == ("x", f"must be an aware datetime, not {type(value).__name__}")


class TestClean:
    @given(st.text(st.characters()), st.integers(-5, 60))
    @example("日" * 30, 20)
    @example("\0" * 30, 10)
    def test_is_storable_and_within_the_limit(self, text: str, limit: int) -> None:
        found = clean(text, limit)
        raw = found.encode()
        assert len(raw) <= max(limit, 0)
        assert not any(unicodedata.category(x) == "Cc" and x not in "\n\t" for x in found)
        assert clean(found, limit) == found

    @given(st.text(st.characters(exclude_categories=["Cs", "Cc"])))
    def test_ordinary_text_stays(self, text: str) -> None:
        assert clean(text, len(text.encode())) == text

    @pytest.mark.parametrize(
        ("text", "limit", "expected"),
        [
            ("a\0b\x1b[2J\x85\x7f\n\t", 100, "a\ufffdb\ufffd[2J\ufffd\ufffd\n\t"),
            ("a\ud800\udc80b", 100, "a\ufffd\ufffdb"),
            ("\\u0000", 100, "\\u0000"),
            ("x" * 30, 20, "x" * (20 - len(CUT.encode())) + CUT),
            ("日" * 30, 20, "日日日" + CUT),
            ("x" * 30, 5, "xxxxx"),
            ("😀", 3, ""),
            ("x", 0, ""),
            ("x", -1, ""),
            ("", 0, ""),
        ],
    )
    def test_examples(self, text: str, limit: int, expected: str) -> None:
        assert clean(text, limit) == expected


class Silent(Exception):
    def __init__(self, raised: BaseException) -> None:
        self.raised = raised

    def __str__(self) -> str:
        raise self.raised


class Odd(Exception):
    def __init__(self, text: Any) -> None:
        self.text = text

    def __str__(self) -> Any:
        return self.text


class Wall(Exception):
    """Every question about it fails."""

    def __getattribute__(self, _: str) -> Any:
        raise KeyboardInterrupt

    def __str__(self) -> str:
        raise SystemExit(3)


class Endless(Exception):
    def __str__(self) -> str:
        return str(self)


class Hostile(str):
    __slots__ = ()

    def _no(self, *_: Any) -> Any:
        raise RuntimeError

    __str__ = __len__ = __getitem__ = encode = __iter__ = __contains__ = _no  # type: ignore[assignment]


class Nameless(type):
    @property
    def __name__(cls) -> Any:  # type: ignore[override]
        raise RuntimeError


class Renamed(type):
    @property
    def __name__(cls) -> Any:  # type: ignore[override]
        return "B\0\ud800"


def caught(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as found:
        return found


class TestDescribe:
    def test_ordinary(self) -> None:
        assert describe(ValueError("boo")) == ("ValueError", "boo")
        assert describe(KeyError("x")) == ("KeyError", "'x'")
        assert describe(ValueError()) == ("ValueError", "")
        assert describe("something failed\0") == ("error", "something failed\ufffd")
        assert describe(asyncio.CancelledError("stop")) == ("CancelledError", "stop")
        assert describe(OSError(2, "No such file", "/x")) == ("FileNotFoundError", "[Errno 2] No such file: '/x'")

    @pytest.mark.parametrize(
        "raised", [ValueError("S3cr3t"), KeyboardInterrupt(), SystemExit(1), GeneratorExit(), MemoryError()]
    )
    def test_str_raises(self, raised: BaseException) -> None:
        assert describe(Silent(raised)) == ("Silent", f"<no message: __str__ raised {type(raised).__name__}>")

    def test_str_is_no_string(self) -> None:
        for text in (None, 1, b"x"):
            assert describe(Odd(text)) == ("Odd", "<no message: __str__ raised TypeError>")
        assert describe(Endless()) == ("Endless", "<no message: __str__ raised RecursionError>")

    def test_hostile(self) -> None:
        assert describe(Odd(Hostile("x\0"))) == ("Odd", "x\ufffd")
        assert describe(Hostile("x")) == ("error", "x")
        assert describe(Wall()) == ("Wall", "<no message: __str__ raised SystemExit>")
        assert describe(Nameless("A", (Exception,), {})("x")) == ("Exception", "x")
        assert describe(type("A\x1b\n", (Exception,), {})("x")) == ("A\ufffd ", "x")
        assert describe(Renamed("A", (Exception,), {})("x")) == ("B\ufffd\ufffd", "x")
        assert describe(None) == ("NoneType", "None")  # type: ignore[arg-type]

    def test_sizes(self) -> None:
        code, message = describe(type("E" * 10_000, (Exception,), {})("日" * 10_000_000))
        assert len(code.encode()) <= 200
        assert code.endswith(CUT)
        assert len(message.encode()) <= 64 * 1024
        assert message.endswith(CUT)
        error: BaseException = ValueError("x" * 10**6)
        for _ in range(50):
            error = caught(ValueError("x" * 10**6), error)
        assert len(describe(error)[1].encode()) <= 64 * 1024

    def test_causes(self) -> None:
        error = caught(ValueError("a"), caught(KeyError("b"), OSError("c\0")))
        assert describe(error) == ("ValueError", "a (caused by KeyError: 'b') (caused by OSError: c\ufffd)")
        assert describe(caught(ValueError("a"), KeyError())) == ("ValueError", "a (caused by KeyError)")

    def test_at_most_five_causes(self) -> None:
        error: BaseException = ValueError("0")
        for number in range(1, 100):
            error = caught(ValueError(str(number)), error)
        message = describe(error)[1]
        assert message.startswith("99 (caused by ValueError: 98) ")
        assert message.count("caused by") == 5

    def test_cyclic_causes(self) -> None:
        one, two = ValueError("one"), ValueError("two")
        one.__cause__, two.__cause__ = two, one
        assert describe(one) == ("ValueError", "one (caused by ValueError: two)")
        own = ValueError("own")
        own.__cause__ = own
        assert describe(own) == ("ValueError", "own")

    def test_context(self) -> None:
        error = ValueError("second")
        error.__context__ = KeyError("first")
        assert describe(error) == ("ValueError", "second (while handling KeyError: 'first')")
        error.__suppress_context__ = True
        assert describe(error) == ("ValueError", "second")

    def test_notes(self) -> None:
        error = ValueError("a")
        error.add_note("first\0")
        error.add_note("second")
        assert describe(error) == ("ValueError", "a\nfirst\ufffd\nsecond")
        error.__notes__ = Wall()  # type: ignore[assignment]
        assert describe(error) == ("ValueError", "a")

    def test_groups(self) -> None:
        inner = ExceptionGroup("inner", [KeyError(number) for number in range(8)])
        error = BaseExceptionGroup("outer", [ValueError("a\0"), inner, KeyboardInterrupt()])
        message = (
            "outer (3 sub-exceptions) [ValueError: a\ufffd; KeyError: 0; KeyError: 1; KeyError: 2; KeyError: 3; 5 more]"
        )
        assert describe(error) == ("BaseExceptionGroup", message)

    def test_hostile_groups(self) -> None:
        class Loop(ExceptionGroup):  # type: ignore[type-arg]
            @property
            def exceptions(self) -> Any:
                return (self, self)

        class Broken(ExceptionGroup):  # type: ignore[type-arg]
            @property
            def exceptions(self) -> Any:
                raise SystemExit

        assert describe(Loop("x", [ValueError()]))[0] == "Loop"
        assert describe(Broken("x", [ValueError()]))[0] == "Broken"

    def test_no_locals_and_no_traceback(self) -> None:
        def handler(password: str) -> None:
            raise ValueError(len(password))

        with pytest.raises(ValueError) as found:
            handler("S3cr3t!")
        assert describe(found.value) == ("ValueError", "7")

    def test_with_the_stack_used_up(self) -> None:
        def deeper() -> Any:
            try:
                return deeper()
            except RecursionError as error:
                return describe(error)

        assert deeper()[0] in ("RecursionError", "Exception")

    @given(
        st.lists(
            st.sampled_from(
                [Wall, Endless, ValueError, KeyboardInterrupt, lambda: Odd(3), lambda: Silent(SystemExit())]
            ),
            min_size=1,
            max_size=7,
        ),
        st.booleans(),
    )
    def test_never_raises(self, makers: list[Any], grouped: bool) -> None:
        error: Any = None
        for make in makers:
            new = make()
            if error is not None:
                BaseException.__setattr__(new, "__cause__", error)
            error = BaseExceptionGroup("g", [new]) if grouped else new
        code, message = describe(error)
        assert clean(code, 200) == code
        assert clean(message, 64 * 1024) == message


class TestDatabaseErrors:
    text = 'duplicate key value violates unique constraint "x"\nDETAIL:  Key (a)=(S3cr3t!) already exists.'
    told = 'duplicate key value violates unique constraint "x" (sqlstate 23505)'

    def test_driver(self) -> None:
        assert describe(psycopg.errors.UniqueViolation(self.text)) == ("UniqueViolation", self.told)

    def test_sqlalchemy(self) -> None:
        orig = psycopg.errors.UniqueViolation(self.text)
        error = sqlalchemy.exc.IntegrityError("INSERT …", {"a": "S3cr3t!"}, orig)
        assert "S3cr3t!" in str(error)
        expected = ("IntegrityError", f"UniqueViolation: {self.told}")
        assert describe(error) == expected
        assert describe(caught(error, orig)) == expected
        outer = caught(RuntimeError("cannot save"), caught(error, caught(orig, OSError("deeper"))))
        assert describe(outer) == (
            "RuntimeError",
            f"cannot save (caused by IntegrityError: UniqueViolation: {self.told}) (caused by OSError: deeper)",
        )
        assert "S3cr3t!" not in str(describe(ExceptionGroup("all", [error, orig])))

    def test_parameters_of_a_real_statement(self) -> None:
        engine = sqlalchemy.create_engine("sqlite://", poolclass=sqlalchemy.NullPool)
        for statement, values in (("SELEC :a", {"a": "S3cr3t!"}), ("SELECT :a, :b", {"a": "S3cr3t!"})):
            with pytest.raises(sqlalchemy.exc.StatementError) as caught, engine.connect() as connection:
                connection.execute(sqlalchemy.text(statement), values)
            assert "S3cr3t!" in str(caught.value)
            code, message = describe(caught.value)
            assert code == type(caught.value).__name__
            assert message
            assert "S3cr3t!" not in message

    def test_without_a_driver_error(self) -> None:
        error = sqlalchemy.exc.StatementError("bad\nDETAIL: S3cr3t!", "SELECT 1", {"a": "S3cr3t!"}, None)
        assert describe(error) == ("StatementError", "bad")

    def test_a_broken_driver_error(self) -> None:
        error = sqlalchemy.exc.DBAPIError("x", {}, OSError())
        error.orig = Wall()
        assert describe(error) == ("DBAPIError", "Wall: <no message: __str__ raised SystemExit>")
