"""Options that several commands take, and the types of their values."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from runqueue.cli.app import App

F = TypeVar("F", bound=Callable[..., Any])

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhd]?)(?:\d+(?:\.\d+)?[smhd])*")


def duration(value: str) -> float:
    """Seconds, or numbers with units such as 90s, 10m, 1h30m, 2d, as seconds. Raises click.BadParameter."""
    if not _DURATION.fullmatch(value):
        raise click.BadParameter(f"{value!r} is no duration: give seconds, or for example 90s, 10m, 1h30m, 2d.")
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd]?)", value)
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _store(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value not in (None, ()) and param.name is not None:
        ctx.ensure_object(App).options[param.name] = value


def _flag(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and param.name is not None:
        setattr(ctx.ensure_object(App), param.name, True)


def shared(*, hidden: bool = False) -> list[click.Option]:
    """The options of `runqueue` itself. They may stand before the command or, there not listed again, after it.

    Those that name plugins are eager, so that `--help` after them lists the commands which the plugins bring.
    """
    common: dict[str, Any] = {"expose_value": False, "hidden": hidden}
    return [
        click.Option(
            ["--database-url"], metavar="URL", callback=_store, **common,
            help="The PostgreSQL database, as postgresql://USER:PASSWORD@HOST/DATABASE. "
            "Better in RUNQUEUE_DATABASE_URL: other users of the machine can read command lines.",
        ),
        click.Option(
            ["--schema"], metavar="NAME", callback=_store, **common,
            help="The PostgreSQL schema with the tables (RUNQUEUE_SCHEMA; default: runqueue).",
        ),
        click.Option(
            ["--claim"], metavar="POLICY", callback=_store, **common,
            help="How lost runs are found: reaper or takeover (RUNQUEUE_CLAIM; default: reaper).",
        ),
        click.Option(
            ["--plugin", "plugins"], metavar="NAME", multiple=True, callback=_store, is_eager=True, **common,
            help="A plugin to use; may be repeated (RUNQUEUE_PLUGINS: names with commas).",
        ),
        click.Option(
            ["--no-plugin", "no_plugins"], metavar="NAME", multiple=True, callback=_store, is_eager=True, **common,
            help="A plugin to leave out, a default or a configured one; may be repeated (RUNQUEUE_NO_PLUGINS).",
        ),
        click.Option(
            ["--embedded"], is_flag=True, callback=_flag, **common,
            help="For development only: run a PostgreSQL of its own, with its data in .runqueue/, "
            "for as long as the command runs.",
        ),
        click.Option(
            ["-v", "--verbose"], is_flag=True, callback=_flag, **common,
            help="Log more, and show the traceback of an error.",
        ),
    ]  # fmt: skip


class Command(click.Command):
    """A command that takes the options of `runqueue` itself too, and ends its help with an example."""

    def __init__(self, *args: Any, example: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.epilog = f"\b\nExample:\n  {example}"
        self.example = example
        self.params += shared(hidden=True)


class Group(Command, click.Group):
    """A command that does something by itself, and has further commands below it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, invoke_without_command=True, **kwargs)


def group(name: str, *, example: str) -> Callable[[Callable[..., Any]], Group]:
    """Make a function a command with others below it; it is to do nothing where one of those is called."""
    return click.group(name, cls=Group, example=example)


def command(name: str, *, example: str) -> Callable[[Callable[..., Any]], Command]:
    """Make a function a command."""
    return click.command(name, cls=Command, example=example)


def json_option(what: str) -> Callable[[F], F]:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print {what}.")
