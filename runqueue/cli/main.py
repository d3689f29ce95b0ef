"""The entry point: which commands there are, and what becomes of an error."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

import click

from runqueue import __version__
from runqueue.cli import exits
from runqueue.cli.app import App
from runqueue.cli.options import shared
from runqueue.cli.output import visible

SECTIONS = {
    "Start": {
        "demo": "demo:demo",
        "migrate": "schema:migrate",
        "worker": "worker:worker",
        "enqueue": "produce:enqueue",
    },
    "Look": {
        "list": "reading:list_runs",
        "show": "reading:show",
        "watch": "reading:watch",
        "explain": "reading:explain",
        "stats": "reading:stats",
        "plugins": "plugins:plugins",
    },
    "Control": {
        "cancel": "control:cancel",
        "retry": "control:retry",
        "reap": "control:reap",
        "pause": "control:pause",
        "resume": "control:resume",
        "tenants": "tenants:tenants",
        "rules": "rules:rules",
    },
}
COMMANDS = {name: place for section in SECTIONS.values() for name, place in section.items()}
"""Each command, and where it is below `runqueue.cli.commands`."""


class Commands(click.Group):
    """A group that imports a command when it is wanted; those of plugins, where plugins are configured."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order of the help."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command with this name."""
        if cmd_name not in COMMANDS:
            return ctx.ensure_object(App).commands.get(cmd_name)
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        found: click.Command = getattr(import_module(f"runqueue.cli.commands.{module}"), attribute)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is called; suggest one where it is misspelt."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            more = ctx.ensure_object(App).commands
            if name in more:
                return name, more[name], args[1:]
            near = get_close_matches(name, [*COMMANDS, *more], n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by subject."""
        sections = {title: {name: self.get_command(ctx, name) for name in x} for title, x in SECTIONS.items()}
        wrong = ""
        try:
            sections["Plugins"] = dict(ctx.ensure_object(App).commands)
        except click.UsageError as error:  # help is what one looks for when something is wrong
            wrong = error.format_message()
        widest = max(len(name) for section in sections.values() for name in section)
        for title, section in sections.items():
            if section:
                with formatter.section(title):
                    formatter.write_dl(
                        [(n.ljust(widest), x.get_short_help_str(formatter.width)) for n, x in section.items() if x]
                    )
        if wrong:
            formatter.write_paragraph()
            formatter.write_text(f"The commands of plugins cannot be listed: {wrong}")


@click.group(
    cls=Commands,
    params=shared(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="\b\nA first look, without any database:  runqueue demo\n"
    "Help on a command:                   runqueue COMMAND --help\n\n"
    "Settings come from options, then RUNQUEUE_* variables, then runqueue.toml, then [tool.runqueue] in "
    "pyproject.toml, both in the working directory.\n\n"
    "Exit codes: 0 ok, 1 failed, 2 wrong usage, 3 no such run, 4 database unreachable, 5 schema missing or outdated.",
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """A durable queue for AI-agent runs, inside your PostgreSQL."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. An error becomes one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    app = App(taken=COMMANDS)
    try:
        code: Any = cli.main(arguments, prog_name="runqueue", standalone_mode=False, obj=app)
        return code or 0
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return exits.USAGE
    except click.Abort:
        return exits.INTERRUPTED
    except Exception as error:
        return _report(error, app)


def main() -> NoReturn:
    """The console script."""
    sys.exit(run())


def _report(error: Exception, app: App) -> int:
    code, message = exits.explain(error)
    if app.verbose and not isinstance(error, click.ClickException):
        message = "".join(traceback.format_exception(error)) + message
    if app.embedded:
        message = message.replace("`runqueue migrate", "`runqueue --embedded migrate")
    text = exits.without(app.secrets, app.redacted(f"runqueue: {message}{app.hint}"))
    lines = text.split("\n") if app.verbose or type(error).__name__ == "DevDatabaseError" else [" ".join(text.split())]
    for one in lines:
        click.echo(visible(one), err=True)
    return code
