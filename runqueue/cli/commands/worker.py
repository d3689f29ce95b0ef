"""`worker`: a process that runs an application's handlers."""

from __future__ import annotations

import logging
import os
import sys
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from sysconfig import get_path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

import click

from runqueue.cli import exits
from runqueue.cli.app import App, pass_app
from runqueue.cli.config import option
from runqueue.cli.options import command
from runqueue.errors import PluginError

if TYPE_CHECKING:
    from sqlalchemy import URL

    from runqueue.aio import AsyncRunQueue
    from runqueue.queue import RunQueue


@command("worker", example="runqueue worker shop.agents:queue -q default -q slow --concurrency 20")
@click.argument("target", metavar="APP:QUEUE")
@click.option("-q", "--queue", "queues", multiple=True, default=("default",), show_default=True, metavar="NAME",
              help="Take runs from this queue; may be repeated.")  # fmt: skip
@click.option("--concurrency", type=click.IntRange(1), default=10, show_default=True, help="Runs at the same time.")
@pass_app
def worker(app: App, target: str, queues: tuple[str, ...], concurrency: int) -> None:
    """Run the handlers of an application, until SIGTERM or Ctrl-C.

    APP:QUEUE names a module, importable from the working directory, and the RunQueue or AsyncRunQueue in it. That
    object has its own database, schema, claim policy and settings; the database configured here is told to the
    application in the variable RUNQUEUE_DATABASE_URL. Plugins that are configured here are used if it names none.

    The first signal drains: no new runs are taken, and those that go on have time to finish before they are given
    back. A second signal ends the process at once.
    """
    module, attribute = _split(target)
    if app.database_url is not None:
        os.environ["RUNQUEUE_DATABASE_URL"] = app.database_url
    queue = _find(app, target, module, attribute)
    _agree(app, target, queue)
    app.log(logging.INFO)
    from runqueue.worker import Worker

    try:
        Worker(queue, queues=list(queues), concurrency=concurrency).run()
    except PluginError as error:  # the install's rules, or the database, not the call
        raise click.ClickException(str(error)) from error


def _split(target: str) -> tuple[str, str]:
    module, colon, attribute = target.partition(":")
    if not colon or not all(x.isidentifier() for x in (*module.split("."), *attribute.split("."))):
        guess = module.removesuffix(".py").replace("/", ".").strip(".")
        hint = f"; did you mean {guess}:{attribute or 'queue'}?" if guess else ""
        raise click.UsageError(f"{target!r} is not MODULE:ATTRIBUTE, such as shop.agents:queue{hint}")
    if module.endswith(".py"):
        raise click.UsageError(
            f"{target!r}: a module, not a file: did you mean {module.removesuffix('.py')}:{attribute}?"
        )
    return module, attribute


def _find(app: App, target: str, module: str, attribute: str) -> RunQueue | AsyncRunQueue:
    from runqueue.aio import AsyncRunQueue
    from runqueue.queue import RunQueue

    sys.path.insert(0, os.getcwd())
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            app.hint = _place_in_code(error)
            raise  # the application's own import failed
        raise click.UsageError(
            f"{target}: there is no module {error.name!r} in {os.getcwd()} or among what is installed"
        ) from None
    except Exception as error:
        app.hint = _place_in_code(error)
        if isinstance(error, KeyError) and error.args == ("RUNQUEUE_DATABASE_URL",):
            app.hint += ": give --database-url or set RUNQUEUE_DATABASE_URL"
        raise
    names = [x for x, value in vars(found).items() if isinstance(value, (RunQueue, AsyncRunQueue))]
    hint = f"; there is {module}:{(get_close_matches(attribute, names, cutoff=0) or names)[0]}" if names else ""
    for step in attribute.split("."):
        try:
            found = getattr(found, step)
        except AttributeError:
            raise click.UsageError(f"{target}: the module {module!r} has no {attribute!r}{hint}") from None
    if not isinstance(found, (RunQueue, AsyncRunQueue)):
        raise click.UsageError(f"{target}: must be a RunQueue or AsyncRunQueue, not {type(found).__name__}{hint}")
    return found


def _place_in_code(error: BaseException) -> str:
    """Where in the application it happened: the innermost code that is not of a library, where there is such code."""
    if isinstance(error, SyntaxError):
        frames = [(error.filename or "?", error.lineno)]
    else:
        frames = [(x.filename, x.lineno) for x in extract_tb(error.__traceback__)]
    here = Path(__file__).resolve().parent.parent
    found = [x for x in frames if not x[0].startswith("<") and not Path(x[0]).resolve().is_relative_to(here)]
    own = [x for x in found if _is_own(Path(x[0]))]
    for file, line in (own or found)[-1:]:
        path = Path(file)
        return f" ({path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{line})"
    return ""


def _is_own(path: Path) -> bool:
    libraries = [Path(x) for x in (get_path("stdlib"), get_path("platstdlib"))]
    return "site-packages" not in path.parts and not any(path.is_relative_to(x) for x in libraries)


def _agree(app: App, target: str, queue: RunQueue | AsyncRunQueue) -> None:
    """Refuse options that the queue object would silently ignore."""
    from sqlalchemy import make_url

    url: URL = queue.engine.url
    app.secrets.update(exits.passwords(url.render_as_string(hide_password=False)))
    core = queue.core
    for key, has in (("schema", core.ctx.t.schema), ("claim", core.ctx.policy.name)):
        if app.options.get(key, has) != has:
            raise click.UsageError(f"--{key}: no effect here, {target} says {has!r} itself")
    _use_plugins(app, target, queue)
    option = "--embedded" if app.embedded else "--database-url" if "database_url" in app.options else None
    if option and app.database_url and _place(make_url(app.database_url)) != _place(url):
        raise click.UsageError(
            f"{option}: no effect here, {target} uses {url.render_as_string(hide_password=True)}; "
            "let it read RUNQUEUE_DATABASE_URL"
        )


def _use_plugins(app: App, target: str, queue: RunQueue | AsyncRunQueue) -> None:
    """Give the queue the configured plugins, unless it names some itself."""
    import dataclasses

    from runqueue.core import Core
    from runqueue.hooks.manager import DEFAULTS

    config, ctx = app.config, queue.core.ctx
    if not (config.plugins or config.no_plugins or config.plugin_options):
        return
    if [x.name for x in ctx.hooks.plugins()] != [*DEFAULTS] or any(x.options for x in ctx.hooks.plugins()):
        for key in ("plugins", "no_plugins"):
            if key in app.options:
                raise click.UsageError(f"{option(key)}: no effect here, {target} names its plugins itself")
        return
    try:
        core = Core.build(
            ctx.t.schema, ctx.policy, config.plugins, ctx.settings, config.plugin_options, config.no_plugins
        )
    except PluginError as error:
        raise app.wrong_plugin(error) from error
    queue.core = dataclasses.replace(queue.core, ctx=core.ctx)


def _place(url: URL) -> tuple[Any, ...]:
    host = url.host or url.query.get("host")
    return host, url.port or url.query.get("port") or 5432, url.database
