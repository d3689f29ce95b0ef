"""What the documentation says is executed, or compared with the code.

A ```python block is run, in order, with the others of its document, in one namespace and on a fresh database; `no-run`
after `python` only compiles it. A ```sql block is run on that database. Code in an HTML comment `<!-- run … -->` is
run too: what a reader need not see.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import click
import pytest
from _pytest.mark import ParameterSet
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine
from support.cli import PROGRAM, environment, process
from support.tools import autocommit

from runqueue import AsyncRunQueue, RunQueue, Settings
from runqueue.cli import config
from runqueue.states import TERMINAL, TRANSITIONS

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]

FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<body>.*?)^```$|^<!-- run\n(?P<hidden>.*?)^-->$", re.M | re.S)
DATABASE = re.compile(r"postgresql\+psycopg://(localhost|pgbouncer)/app")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)$", re.M)
AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


@dataclass(frozen=True)
class Block:
    """A piece of code in a document. `language` is the first word after the fence."""

    language: str
    flags: tuple[str, ...]
    body: str
    line: int

    def compiled(self, path: Path, source: str) -> types.CodeType:
        padded = "\n" * self.line + source  # so that a traceback shows the document's own line
        return compile(padded, str(path), "exec", flags=AWAIT)


def blocks(path: Path) -> list[Block]:
    text = path.read_text()
    found = []
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match["hidden"] is not None:
            found.append(Block("python", (), match["hidden"], line))
        else:
            language, *flags = match["info"].split() or [""]
            found.append(Block(language, tuple(flags), match["body"], line))
    return found


def with_examples() -> list[ParameterSet]:
    deletes = pytest.mark.audit(skip=("INV8",))  # one recipe removes old runs, which nothing else may
    return [
        pytest.param(name, marks=[deletes] if name == "docs/operating.md" else [])
        for name in NAMES
        if any(block.language in {"python", "sql"} for block in blocks(ROOT / name))
    ]


@pytest.fixture
def module(request: pytest.FixtureRequest) -> Iterator[types.ModuleType]:
    """Where a document's code lives; a real module, for the ORM asks for the one that a class is of."""
    module = types.ModuleType("runqueue_document")
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


@pytest.mark.parametrize("name", with_examples())
def test_examples_run(name: str, url: str, module: types.ModuleType) -> None:
    path = ROOT / name
    with asyncio.Runner() as loop:
        try:
            for block in blocks(path):
                if block.language == "sql":
                    with autocommit(url) as connection:
                        connection.exec_driver_sql(block.body)
                if block.language == "python":
                    code = block.compiled(path, DATABASE.sub(lambda _: url, block.body))
                    if "no-run" not in block.flags:
                        _run(code, module, loop)
        finally:
            _dispose(module, loop)


def _run(code: types.CodeType, module: types.ModuleType, loop: asyncio.Runner) -> None:
    async def awaited() -> None:
        await eval(code, module.__dict__)

    if code.co_flags & inspect.CO_COROUTINE:
        loop.run(awaited())
    else:
        exec(code, module.__dict__)


def _dispose(module: types.ModuleType, loop: asyncio.Runner) -> None:
    for value in list(vars(module).values()):
        engine = value.engine if isinstance(value, RunQueue | AsyncRunQueue) else value
        if isinstance(engine, Engine):
            engine.dispose()
        elif isinstance(engine, AsyncEngine):
            loop.run(engine.dispose())


def test_the_quickstart_is_an_application_that_runs(url: str, tmp_path: Path) -> None:
    """As its reader does it: a file, its own table, an order, a worker as a process, and what the commands say."""
    [app] = [b.body for b in blocks(ROOT / "docs/quickstart.md") if b.body.startswith("import os")]
    (tmp_path / "app.py").write_text(app)
    variables = environment(RUNQUEUE_DATABASE_URL=url)

    def python(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "app.py", *words], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert process("migrate", cwd=tmp_path, RUNQUEUE_DATABASE_URL=url).code == 0
    python("tables")
    run = python("order", "lamp")
    worker = subprocess.Popen([*PROGRAM, "worker", "app:queue"], cwd=tmp_path, env=variables, stderr=subprocess.PIPE)
    try:
        watched = process("watch", run, "--timeout", 30, cwd=tmp_path, RUNQUEUE_DATABASE_URL=url)
        assert [row[2] for row in watched.rows] == ["turn"] * 3, watched.err
        assert "is done" in watched.err
    finally:
        worker.terminate()
        _, said = worker.communicate(timeout=60)
    assert worker.returncode == 0, said


def test_every_language_is_known() -> None:
    used = {block.language for name in NAMES for block in blocks(ROOT / name)}
    assert used <= {"python", "sql", "sh", "mermaid", "ini", "toml"}, "a misspelt language would not be tested"


def test_settings_files_are_accepted(tmp_path: Path) -> None:
    shown = [block.body for name in NAMES for block in blocks(ROOT / name) if block.language == "toml"]
    assert shown
    for body in shown:
        (tmp_path / "runqueue.toml").write_text(body)
        assert config.load({}, {}, tmp_path).settings != Settings()


def test_fences_are_balanced() -> None:
    for path in DOCUMENTS:
        text = path.read_text()
        whole = sum(match["hidden"] is None for match in FENCE.finditer(text))
        assert len(re.findall(r"^```", text, re.M)) == 2 * whole, path.name
        assert len(re.findall(r"<!--", text)) == len(list(FENCE.finditer(text))) - whole, path.name


# ------------------------------------------------------------------------------------------------------ state diagram


def diagram() -> str:
    """The state diagram, from the table that the code follows."""
    edges: dict[tuple[str, str], list[str]] = {}
    for move in TRANSITIONS:
        edge = (move.source.value if move.source else "[*]", move.target.value)
        edges.setdefault(edge, []).append(move.verb)
    lines = [f"    {source} --> {target}: {', '.join(verbs)}" for (source, target), verbs in edges.items()]
    targets = dict.fromkeys(move.target for move in TRANSITIONS)
    ends = [f"    {target.value} --> [*]" for target in targets if target in TERMINAL]
    return "\n".join(["stateDiagram-v2", *lines, *ends]) + "\n"


@pytest.mark.parametrize("name", ["README.md", "docs/concepts.md"])
def test_state_diagram_is_the_table_of_states(name: str) -> None:
    shown = [b.body for b in blocks(ROOT / name) if b.language == "mermaid"]
    assert shown == [diagram()], f"the diagram should be:\n{diagram()}"


def test_every_verb_that_moves_a_run_is_explained() -> None:
    explained = set(re.findall(r"^\| `(\w+)` \| ", (ROOT / "docs/concepts.md").read_text(), re.M))
    assert {move.verb for move in TRANSITIONS} <= explained


# ----------------------------------------------------------------------------------------------------------- settings


def test_settings_table_is_the_dataclass() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \| (.+) \|$", (ROOT / "docs/settings.md").read_text(), re.M)
    shown = {name: ast.literal_eval(default) for name, default, _ in rows}
    assert shown == {field.name: field.default for field in fields(Settings)}
    assert [name for name, *_ in rows] == [field.name for field in fields(Settings)]


# -------------------------------------------------------------------------------------------------------------- links


def anchors(path: Path) -> set[str]:
    """The headings of a document, as GitHub names them."""
    prose = FENCE.sub("", path.read_text())
    titles = re.findall(r"^#+ (.+)$", prose, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", NAMES)
def test_relative_links_resolve(name: str) -> None:
    path = ROOT / name
    for inline, reference in LINK.findall(FENCE.sub("", path.read_text())):
        link = inline or reference
        if re.match(r"https?://", link):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.is_file(), f"{name}: {link}"
        assert target.is_relative_to(ROOT), f"{name}: {link}"
        assert not anchor or anchor in anchors(target), f"{name}: {link}: no such heading"


def test_every_document_is_reached_from_the_readme() -> None:
    linked = set(re.findall(r"\]\(docs/([\w-]+\.md)", (ROOT / "README.md").read_text()))
    assert linked == {path.name for path in (ROOT / "docs").glob("*.md")}


# ---------------------------------------------------------------------------------------------------------------- CLI


def command_lines() -> list[tuple[str, list[str]]]:
    """Every `runqueue …` in a shell block, and in text: the document, and the words after `runqueue`."""
    found = []
    for path in DOCUMENTS:
        text = path.read_text()
        lines = [line for b in blocks(path) if b.language == "sh" for line in b.body.splitlines()]
        lines += re.findall(r"`(runqueue [^`]+)`", FENCE.sub("", text))
        for line in lines:
            for part in re.split(r"&&|\||;", line):
                words = shlex.split(part, comments=True)
                while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                    words.pop(0)
                if words and words[0] == "runqueue":
                    found.append((path.name, words[1:]))
    return found


PLACEHOLDERS = {"ID": "01890a5d-ac96-774b-bcce-b302099a8057", "QUEUE": "default", "NAME": "research"}


def test_command_lines_exist() -> None:
    from runqueue.cli.main import cli

    lines = command_lines()
    assert len(lines) >= 20
    for name, words in lines:
        if words[:1] != ["COMMAND"]:
            _parse(f"{name}: runqueue {' '.join(words)}", cli, [PLACEHOLDERS.get(x, x) for x in words])


def _parse(shown: str, cli: click.Group, words: list[str]) -> None:
    """Parse a command line as click would, the types of all values included, and run nothing."""
    from runqueue.cli.app import App

    context = click.Context(cli, info_name="runqueue", obj=App(), **cli.context_settings)
    try:
        group, rest = cli, cli.make_parser(context).parse_args(list(words))[1]
        while rest:
            command = group.get_command(context, rest[0])
            assert command is not None, f"{shown}: no such command"
            context = command.make_context(rest[0], rest[1:], parent=context)
            group, rest = command, [*context._protected_args, *context.args]
    except click.exceptions.Exit:
        pass  # --help and --version
    except click.UsageError as error:
        raise AssertionError(f"{shown}: {error.format_message()}") from error


def test_every_command_is_shown() -> None:
    from runqueue.cli.main import COMMANDS

    shown = {word for _, words in command_lines() for word in words[:1]}
    assert set(COMMANDS) <= shown


@pytest.mark.parametrize("name", NAMES)
def test_make_targets_and_scripts_exist(name: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for block in blocks(ROOT / name):
        for line in block.body.splitlines() if block.language == "sh" else []:
            words = shlex.split(line, comments=True)
            if words[:1] == ["make"]:
                assert set(words[1:]) <= targets, f"{name}: {line}"
            elif words and "/" in words[0]:
                assert (ROOT / words[0]).is_file(), f"{name}: {line}"


# --------------------------------------------------------------------------------------------------------------- words


@pytest.mark.parametrize("name", [*NAMES, "LICENSE"])
def test_no_path_of_a_machine(name: str) -> None:
    text = (ROOT / name).read_text()
    assert not re.findall(r"(?<![\w.])/(?:work|tmp|root|home|Users|dev/shm)\b\S*", text)
    assert str(Path.home()) == "/" or str(Path.home()) not in text


@pytest.mark.parametrize("name", NAMES)
def test_names_of_errors_and_types_exist(name: str) -> None:
    """A word in code that looks like one of our exceptions or classes is one."""
    import runqueue
    from runqueue import testing

    text = FENCE.sub("", (ROOT / name).read_text())
    ours = {word for word in re.findall(r"`([A-Z]\w+?)(?:\(.*?\))?`", text) if not word.isupper()}
    foreign = {"AsyncConnection", "AsyncEngine", "AsyncSession", "Connection", "Engine", "Session", "CancelledError",
               "None", "True", "False"}  # fmt: skip
    assert ours - foreign <= {*runqueue.__all__, *testing.__all__}
