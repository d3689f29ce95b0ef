"""How things are printed: whatever is stored, the line stays a line, and JSON says exactly what was stored."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from support.cli import PROGRAM, caller, environment

from runqueue import RunQueue
from runqueue.cli import output

HARMLESS = {"\u200c", "\u200d"}  # the joiners: emoji and some scripts are made with them


@settings(deadline=None)
@given(st.text())
def test_visible_text_is_one_line_of_visible_characters(text):
    for character in output.visible(text):
        assert character in HARMLESS or unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp")
        assert unicodedata.bidirectional(character) not in (
            "LRE",
            "RLE",
            "LRO",
            "RLO",
            "PDF",
            "LRI",
            "RLI",
            "FSI",
            "PDI",
        )


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
@pytest.mark.parametrize("indent", [None, 2])
def test_json_is_safe_and_says_the_same(indent, value):
    text = output.to_json(value, indent=indent)
    assert json.loads(text) == value
    assert output.visible(text.replace("\n", "")) == text.replace("\n", "")
    assert indent or "\n" not in text


@pytest.mark.parametrize("text", ["plain", "ünï", "你好", "مرحبا", "👩‍👩‍👧", "a\\b", "'\"`$"])
def test_what_is_harmless_stays_as_it_is(text):
    assert output.visible(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [("\x1b[31m", r"\x1b[31m"), ("a\nb\r\tc", r"a\nb\r\tc"), ("\u202eabc", r"\u202eabc"), ("\x9b", r"\x9b"),
     ("\U000e0041", r"\U000e0041"), ("\ud800", r"\ud800")],
)  # fmt: skip
def test_escapes_can_be_read(text, shown):
    assert output.visible(text) == shown


def test_json_is_ascii_where_stdout_holds_no_more(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert output.to_json("ü🙂") == '"\\u00fc\\ud83d\\ude42"'


# ------------------------------------------------------------------------------------------------------ a terminal


@pytest.fixture
def on_terminal(url, tmp_path):
    """Runs the command line with a terminal as its stdout, and gives what came out there."""

    def call(*arguments, program=PROGRAM, **variables):
        ours, theirs = pty.openpty()
        child = subprocess.Popen(
            [*program, *map(str, arguments)], cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=theirs,
            env=environment(RUNQUEUE_DATABASE_URL=url, TERM="xterm", **({"COLUMNS": "200"} | variables)),
        )  # fmt: skip
        os.close(theirs)
        said = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # what Linux says at the end
                break
            if not part:
                break
            said += part
        os.close(ours)
        assert child.wait(30) == 0
        return said.decode().replace("\r\n", "\n")

    return call


@pytest.fixture
def run(engine):
    return RunQueue(engine).enqueue("k", {"a": 1}, tenant_id="[red]\x1b[31m", priority=7)


def test_a_terminal_gets_a_table(on_terminal, run):
    heading, row = on_terminal("list", NO_COLOR="1").splitlines()
    assert "tenant" in heading
    assert str(run.id) in row
    assert r"[red]\x1b[31m" in row


def test_without_rich_the_table_is_plain_and_aligned(on_terminal, run):
    code = "import sys; sys.modules['rich'] = None; from runqueue.cli.main import main; main()"
    heading, row = on_terminal("list", program=[sys.executable, "-c", code]).splitlines()
    assert heading.split() == ["ID", "STATUS", "TENANT", "QUEUE", "KIND", "ATTEMPTS", "CREATED", "ERROR"]
    assert heading.index("TENANT") == row.index("[red]")
    assert r"[red]\x1b[31m" in row


@pytest.mark.parametrize("rich", [True, False])
@pytest.mark.parametrize(("columns", "more"), [(80, False), (119, False), (120, True), (200, True)])
@pytest.mark.slow
def test_a_run_takes_one_line_of_a_terminal_and_its_id_is_whole(on_terminal, engine, columns, more, rich):
    queue = RunQueue(engine)
    for tenant in ("t", "tenant with a long name " * 5, "你好" * 40):
        queue.enqueue("a kind with a long name " * 5, tenant_id=tenant)
    queue.fail(queue.claim("w")[0].lease, type("AnErrorWithALongName" * 3, (Exception,), {})(), retry=False)
    hide = "" if rich else "sys.modules['rich'] = None; "
    code = f"import sys; {hide}from runqueue.cli.main import main; main()"
    said = on_terminal("list", COLUMNS=str(columns), NO_COLOR="1", program=[sys.executable, "-c", code])
    heading, *rows = re.sub(r"\x1b\[[\d;]*m", "", said).splitlines()
    assert ("queue" in heading.lower(), "created" in heading.lower()) == (more, more)
    assert len(rows) == 3
    assert [row.split()[0] for row in rows] == [str(x.id) for x in queue.list().runs]
    assert max(map(cell_len if rich else len, (heading, *rows))) <= columns
    assert "…" in rows[1]
    for word in ("dead", "pending", "1/3"):
        assert word in said


@pytest.fixture
def call(url, monkeypatch, capsys, tmp_path):
    """Calls in this process, as if stdout were a terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNQUEUE_DATABASE_URL", url)
    monkeypatch.setattr(output, "on_terminal", lambda: True)
    return caller(monkeypatch, capsys)


def test_no_colour_of_a_stored_text_reaches_the_terminal(call, run):
    for arguments in (["list"], ["show", run.id], ["stats"], ["explain", run.id], ["show", run.id, "--json"]):
        result = call(*arguments)
        assert result.code == 0
        assert "\x1b[31m" not in result.out


def test_on_a_terminal_a_document_is_indented_and_absent_facts_are_left_out(call, run):
    document = call("show", run.id, "--json")
    assert document.json["id"] == str(run.id)
    assert '\n  "priority": 7,\n' in document.out
    shown = call("show", run.id).out
    assert "priority" in shown
    assert "finished_at" not in shown


def test_on_a_terminal_a_long_value_is_cut(call, engine):
    run = RunQueue(engine).enqueue("k", "x" * 5000, tenant_id="t")
    shown = call("show", run.id).out
    assert "x" * 1900 in shown
    assert "x" * 2001 not in shown
    assert "--json" in shown
