"""The revisions, as alembic reads and runs them."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Collection, Sequence
from itertools import takewhile

from alembic import command, context, util
from alembic.config import Config
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection

from runqueue.errors import PluginError, RunqueueError
from runqueue.schema.branches import Branch
from runqueue.schema.plan import Applies

ALEMBIC_IS_GLOBAL = threading.Lock()
"""alembic's `context` and `op` are proxies of the whole process; two upgrades in threads would mix."""

_LABEL = re.compile(r"[a-z][a-z0-9_]{0,39}")
_RUNNING = re.compile(r"-- Running upgrade .*-> (?P<revision>\S+)")


def config(schema: str, connection: Connection | None, branch: Branch | None = None) -> Config:
    """The configuration of alembic: without a connection it prints. With a branch, for that plugin's version table."""
    made = Config()
    made.set_main_option("script_location", "runqueue_migrations:")
    made.set_main_option("path_separator", "newline")
    made.attributes["schema"] = schema
    made.attributes["connection"] = connection
    if branch is not None:
        made.set_main_option("version_locations", f"runqueue_migrations:versions\n{branch.location}")
        made.attributes["version_table"] = branch.version_table
    return made


def printed(schema: str, revisions: str, branch: Branch | None = None) -> list[str]:
    """The statements of a range of revisions, `below:last`, in order; alembic's comments and bookkeeping too."""
    out, offline = _Statements(), config(schema, None, branch)
    offline.output_buffer = out
    with ALEMBIC_IS_GLOBAL:
        command.upgrade(offline, revisions, sql=True)
    return out.statements


def by_revision(schema: str, branch: Branch | None = None) -> dict[str, list[str]]:
    """The statements of each revision of the library, or of a plugin."""
    found: dict[str, list[str]] = {}
    of: list[str] = []
    for text in printed(schema, "head" if branch is None else f"{branch.under}:{branch.label}@head", branch):
        if head := _RUNNING.match(text):
            of = found.setdefault(head["revision"], [])
        else:
            of.append(text)
    return found


class _Statements(io.StringIO):
    """alembic writes each statement with one call, and so it need not be found in the text again."""

    def __init__(self) -> None:
        super().__init__()
        self.statements: list[str] = []

    def write(self, text: str) -> int:
        self.statements.append(text)
        return len(text)


def line(branch: Branch | None = None) -> list[Script]:
    """The revisions of the library, or those of a plugin, in the order in which they run."""
    scripts = ScriptDirectory.from_config(config("runqueue", None, branch))
    script = scripts.get_revision(scripts.get_heads()[0] if branch is None else branch.head)
    found = [script]
    while (below := util.to_tuple(script.down_revision, ())) != ():
        script = scripts.get_revision(below[0])
        found.append(script)
    return found[::-1]


def applies(script: Script) -> Applies:
    """Whether a revision goes before or after the new code."""
    said: Applies = getattr(script.module, "applies", "before")
    return said


def pending(have: Collection[str], branch: Branch | None = None, *, before: bool = False) -> list[Script]:
    """What is to run in a database that has recorded these; `before`: only what goes before the new code."""
    scripts = line(branch)
    names = [x.revision for x in scripts]
    at = max((names.index(x) for x in have if x in names), default=-1)
    missing = scripts[at + 1 :]
    return list(takewhile(lambda x: applies(x) == "before", missing)) if before else missing


def read_branches(migrations: Sequence[str]) -> list[Branch]:
    """Look at the plugins' revisions. Raises PluginError for what is no branch of its own."""
    found = [_branch(x) for x in dict.fromkeys(migrations)]
    labels = [x.label for x in found]
    for branch in found:
        if labels.count(branch.label) > 1:
            raise PluginError(f"several plugins bring migrations with the branch label {branch.label!r}")
    return found


def _branch(location: str) -> Branch:
    try:
        core = ScriptDirectory.from_config(config("runqueue", None))
        own = {x.revision for x in core.walk_revisions()}
        both = ScriptDirectory.from_config(config("runqueue", None, Branch(location, "", "", "")))
        theirs = [x for x in both.walk_revisions() if x.revision not in own]
    except Exception as error:  # whatever the modules of the revisions raise
        raise PluginError(f"the migrations {location!r} cannot be read: {error!r}") from error
    bases = [x for x in theirs if x.down_revision is None]
    heads = [x.revision for x in theirs if x.is_head]
    labels = sorted({y for x in bases for y in x.branch_labels})
    if len(bases) != 1 or len(heads) != 1 or len(labels) != 1 or not _LABEL.fullmatch(labels[0]):
        raise PluginError(
            f"the migrations {location!r} must be one line of revisions, the first with no down_revision and with one "
            f"branch label, of at most 40 lower-case letters, digits and _: found are {len(bases)} first ones, "
            f"{len(heads)} last ones, and the labels {', '.join(labels) or '(none)'}"
        )
    under = core.get_heads()[0]
    return Branch(location, labels[0], heads[0], under, frozenset(x.revision for x in theirs if _needs(both, x, under)))


def _needs(scripts: ScriptDirectory, script: Script, revision: str) -> bool:
    """Whether a revision comes after another, in its line or as what it depends on."""
    below = (*util.to_tuple(script.down_revision, ()), *util.to_tuple(script.dependencies, ()))
    return any(
        x.revision == revision or _needs(scripts, x, revision) for name in below for x in scripts.get_revisions(name)
    )


def refuse_inside_a_migration() -> None:
    """Raise RunqueueError where alembic is running already, in this process."""
    # alembic's proxies are installed only while an environment runs; a nested one would remove them on its way out
    if getattr(context, "_proxy", None) is not None and not ALEMBIC_IS_GLOBAL.locked():
        raise RunqueueError(
            "upgrade() was called inside a running alembic migration. Either call it before or after that, with an "
            "engine (`runqueue migrate` at deploy time), or let the application's alembic run the revisions: add "
            "'runqueue_migrations:versions' to its version_locations"
        )
