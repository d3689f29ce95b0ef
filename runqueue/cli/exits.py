"""What a failure means to the caller: an exit code, and one line for people."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote, unquote

import click

from runqueue.errors import IdempotencyConflict, InvalidRun, PluginError, RunNotFound, RunqueueError, SchemaOutdated

FAILED, USAGE, NOT_FOUND, UNREACHABLE, SCHEMA, INTERRUPTED = 1, 2, 3, 4, 5, 130

_NO_SUCH_TABLE = {"42P01", "42703", "3F000"}  # the schema was there when we looked, or is not what it says
_NO_CONNECTION = ("08", "28", "57P", "53300", "3D000")


def explain(error: BaseException) -> tuple[int, str]:
    """The exit code and the message. Never raises."""
    if isinstance(error, click.ClickException):
        return error.exit_code, _usage(error)
    if isinstance(error, RunNotFound):
        return NOT_FOUND, str(error)
    if isinstance(error, SchemaOutdated):
        return SCHEMA, str(error)
    if isinstance(error, (InvalidRun, PluginError)) and not isinstance(error, IdempotencyConflict):
        return USAGE, str(error)
    if type(error).__name__ == "DevDatabaseError":
        return UNREACHABLE, str(error)
    if isinstance(error, RunqueueError):
        return FAILED, str(error)
    if type(error).__module__.partition(".")[0] in ("sqlalchemy", "psycopg"):
        return _database(error)
    if isinstance(error, ImportError) and "pq wrapper" in str(error):
        return FAILED, 'the driver psycopg finds no libpq: pip install "runqueue[binary]"'
    from runqueue.failures import describe

    code, message = describe(error)
    return FAILED, f"{code}: {message}"


def passwords(url: str) -> set[str]:
    """The passwords in a URL, as they are spelt there."""
    found = re.findall(r"^[^/]*//[^:/?#]*:(.*)@", url) + re.findall(r"[?&](?:ssl)?password=([^&]*)", url)
    return {x for x in found if x}


def without(secrets: Iterable[str], text: str) -> str:
    """The text with each secret, as it is spelt in a URL and as it is, replaced."""
    for secret in sorted(secrets, key=len, reverse=True):
        plain = unquote(secret)
        for spelling in sorted({secret, plain, quote(plain, safe=""), quote(plain, safe=" +")}, key=len, reverse=True):
            # a short one is replaced only where it stands alone: it may be a part of any word
            whole = r"(?<!\w){}(?!\w)" if len(spelling) < 5 else "{}"
            text = re.sub(whole.format(re.escape(spelling)), "***", text)
    return text


def _usage(error: click.ClickException) -> str:
    message = " ".join(error.format_message().split())
    context = error.ctx if isinstance(error, click.UsageError) else None
    return message if context is None else f"{message} (see: {context.command_path} --help)"


def _database(error: BaseException) -> tuple[int, str]:
    import psycopg
    from sqlalchemy.exc import DBAPIError

    from runqueue.failures import describe

    cause = error.orig if isinstance(error, DBAPIError) else error
    state = getattr(cause, "sqlstate", None) or ""
    message = describe(error)[1].removeprefix(f"{type(cause).__name__}: ")
    if state in _NO_SUCH_TABLE:
        return SCHEMA, f"the schema is missing or not this release's: {message}: run `runqueue migrate`"
    if isinstance(cause, psycopg.ProgrammingError) and "connection option" in message:
        return USAGE, f"the database's URL: {message}"
    lost = isinstance(error, DBAPIError) and error.connection_invalidated
    if isinstance(cause, psycopg.OperationalError) and (lost or not state or state.startswith(_NO_CONNECTION)):
        return UNREACHABLE, f"the database cannot be reached: {message}"
    return FAILED, message
