"""What the commands of one call share: the configuration, the queue, and what must not be shown."""

from __future__ import annotations

import logging
import signal
import sys
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
    def queue(self) -> RunQueue:
        """The queue that was configured, not connected yet."""
        url, config = self.database_url, self.config
        if url is None:
            raise click.UsageError(
                "which database? Give --database-url or RUNQUEUE_DATABASE_URL; "
                "--embedded starts one for development below this directory"
            )
        from runqueue.queue import RunQueue

        try:
            queue = RunQueue(
                url, schema=config.schema, claim=self.policy, plugins=config.plugins, settings=config.settings
            )
        except InvalidRun as error:
            raise config.wrong(error.field, error.rule) from None
        except PluginError as error:
            raise config.wrong("plugins", error) from None
        click.get_current_context().find_root().call_on_close(queue.close)
        return queue

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
