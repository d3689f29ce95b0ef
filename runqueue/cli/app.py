"""What the commands of one call share: the configuration, the queue, and what must not be shown."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runqueue.cli import exits
from runqueue.cli.config import Config, load
from runqueue.cli.output import note, visible
from runqueue.errors import InvalidRun, PluginError

if TYPE_CHECKING:
    from runqueue.core import Core
    from runqueue.policies import ClaimPolicy
    from runqueue.queue import RunQueue

HOME = Path(".runqueue")
"""Where `--embedded` keeps its data, below the working directory."""


@dataclass
class App:
    """One call of `runqueue`. Nothing is read, imported or connected before a command asks for it."""

    options: dict[str, Any] = field(default_factory=dict)
    """What was given on the command line, by key of the configuration."""
    embedded: bool = False
    verbose: bool = False
    secrets: set[str] = field(default_factory=set)
    """Passwords, to be kept out of whatever is printed."""
    taken: Collection[str] = ()
    """The names of commands that plugins may not bring."""
    hint: str = ""
    """What to add to the message of an error, such as its place in the application's code."""

    @cached_property
    def config(self) -> Config:
        """The configuration. Raises click.UsageError."""
        if self.embedded and "database_url" in self.options:
            raise click.UsageError("--embedded and --database-url exclude each other")
        return load(self.options)

    @cached_property
    def database_url(self) -> str | None:
        """The database that was configured, or that `--embedded` has started; checked, not connected to."""
        config = self.config
        url = self._start() if self.embedded else config.database_url
        for key, value in (("database_url", url), ("listen_url", config.settings.listen_url)):
            if value is not None:
                self._check(key, value)
        return url

    @cached_property
    def policy(self) -> ClaimPolicy:
        """The claim policy that was configured."""
        from runqueue.policies import policy

        try:
            return policy(self.config.claim)
        except PluginError as error:
            raise self.config.wrong("claim", error) from None

    @cached_property
    def core(self) -> Core:
        """The install as it is configured here, with its plugins; touches no database."""
        from runqueue.core import Core

        config = self.config
        try:
            return Core.build(
                config.schema, self.policy, config.plugins, config.settings, config.plugin_options, config.no_plugins
            )
        except InvalidRun as error:
            raise config.wrong(error.field, error.rule) from None
        except PluginError as error:
            raise self.wrong_plugin(error) from error

    def wrong_plugin(self, error: PluginError) -> click.UsageError:
        """The same error, with the place in the configuration that it is about."""
        return self.config.wrong("no_plugins" if error.about == "without" else error.about, error)

    @cached_property
    def commands(self) -> dict[str, click.Command]:
        """The commands that the configured plugins bring; nothing is loaded where none is configured."""
        if not self.config.plugins:
            return {}
        ours = {name: click.Command(name) for name in self.taken}
        group = click.Group("runqueue", commands=dict(ours))
        try:
            self.core.ctx.hooks.commands(group)
        except PluginError as error:
            raise self.wrong_plugin(error) from error
        return {name: x for name, x in group.commands.items() if name not in ours}

    @cached_property
    def queue(self) -> RunQueue:
        """The queue that was configured, not connected yet."""
        url, config = self.database_url, self.config
        if url is None:
            raise click.UsageError(
                "which database? Give --database-url or RUNQUEUE_DATABASE_URL; "
                "--embedded starts one for development below this directory"
            )
        core, _ = self.core, self.commands
        from sqlalchemy import create_engine

        from runqueue.core import connect_args, database_url
        from runqueue.queue import RunQueue

        engine = create_engine(
            database_url(url, "postgresql+psycopg"), connect_args=connect_args(config.settings), hide_parameters=True
        )
        queue = RunQueue.over(core, engine)
        root = click.get_current_context().find_root()
        root.call_on_close(engine.dispose)
        root.call_on_close(queue.close)
        return queue

    def redacted(self, text: str) -> str:
        """What the plugins let be shown of an error; as it is, where it came before any database was looked for."""
        if "runqueue.hooks.manager" not in sys.modules:
            return text
        from runqueue.hooks.manager import Hooks

        try:
            hooks = self.__dict__["core"].ctx.hooks if "core" in self.__dict__ else Hooks()
        except PluginError:  # perhaps the very error that is to be shown
            return text
        return str(hooks.redact(text, "log"))

    def log(self, level: int = logging.WARNING) -> None:
        """Send the library's log to stderr; no-op where the application has set up logging of its own."""
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_Formatter(self.secrets))
        logging.basicConfig(handlers=[handler])
        logging.getLogger("runqueue").setLevel(logging.DEBUG if self.verbose else level)

    def _check(self, key: str, value: str) -> None:
        from sqlalchemy import make_url

        try:
            url = make_url(value)
        except Exception:
            url = None  # its message may quote the password
        if url is None or url.drivername.partition("+")[0] not in ("postgresql", "postgres"):
            raise self.config.wrong(
                key,
                "must be a URL such as postgresql://USER:PASSWORD@HOST:5432/DATABASE, with %40 for @ and %2F for / "
                "in the password",
            ) from None
        self.secrets.update(exits.passwords(value))

    def _start(self) -> str:
        from runqueue.devdb import database

        for name in ("SIGTERM", "SIGHUP"):  # so that the server is stopped on the way out
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), lambda number, _: sys.exit(128 + number))
        HOME.mkdir(exist_ok=True)
        (HOME / ".gitignore").write_text("*\n")
        url = click.get_current_context().find_root().with_resource(database(HOME))
        version = (HOME / "pgdata/PG_VERSION").read_text().strip()
        note(f"PostgreSQL {version} runs, with its data in {HOME}/, for as long as this command. Elsewhere say:")
        note(f"  export RUNQUEUE_DATABASE_URL='{url.replace('+psycopg', '', 1)}'")
        return url


class _Formatter(logging.Formatter):
    """Nothing that a log line quotes can act on the terminal, and no password is in it."""

    def __init__(self, secrets: set[str]) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        text = exits.without(self._secrets, super().format(record))
        return "\n".join(visible(x) for x in text.split("\n"))


pass_app = click.make_pass_decorator(App, ensure=True)
