"""Where settings come from: options, RUNQUEUE_* variables, runqueue.toml, [tool.runqueue] of pyproject.toml.

The first of them that has a key wins. Both files are looked for in the working directory.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from runqueue.errors import InvalidRun
from runqueue.settings import Settings

PREFIX = "RUNQUEUE_"
DEFAULTS: dict[str, Any] = {
    "database_url": None,
    "schema": "runqueue",
    "claim": "reaper",
    "plugins": (),
    "no_plugins": (),
    **{x.name: x.default for x in fields(Settings)},
}
"""Every key. A value has the type of its default; None stands for a text that need not be given."""

OPTIONS = "plugin"
"""The key of the tables with options of plugins, a table a plugin. Files only have it."""

_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


@dataclass(frozen=True)
class Config:
    """What was configured. `origins` says where each key that was given came from."""

    database_url: str | None
    schema: str
    claim: str
    plugins: tuple[str, ...]
    no_plugins: tuple[str, ...]
    plugin_options: Mapping[str, Mapping[str, Any]]
    settings: Settings
    origins: Mapping[str, str] = field(default_factory=dict)

    def wrong(self, key: str, problem: object) -> click.UsageError:
        """The error for a value that turned out wrong when it was used."""
        return click.UsageError(f"{self.origins.get(key, key)}: {problem}")


@dataclass(frozen=True)
class Given:
    """One value, not looked at yet. `origin` names it as people wrote it."""

    key: str
    value: Any
    origin: str


def load(options: Mapping[str, Any], environ: Mapping[str, str] | None = None, directory: Path | None = None) -> Config:
    """Read and check everything. Raises click.UsageError that names the key, its place, and what was perhaps meant."""
    directory = Path() if directory is None else directory
    found: dict[str, Any] = {}
    origins: dict[str, str] = {}
    tables: dict[str, dict[str, Any]] = {}
    named: set[str] = set()
    for given in (
        *_pyproject(directory / "pyproject.toml"),
        *_own_file(directory / "runqueue.toml"),
        *_environment(os.environ if environ is None else environ),
        *(Given(key, value, option(key)) for key, value in options.items()),
    ):
        origins[given.key] = given.origin
        if given.key.startswith(f"{OPTIONS}."):
            tables.setdefault(given.key.removeprefix(f"{OPTIONS}."), {}).update(given.value)
            continue
        found[given.key] = _converted(given)
        if given.key == "plugins":
            named.update(found[given.key])
    values = {**DEFAULTS, **found}
    own = {key: values.pop(key) for key in ("database_url", "schema", "claim", "plugins", "no_plugins")}
    # what one source says of a plugin is no mistake because another source replaces the plugins by its own
    replaced = named.difference(own["plugins"])
    own["no_plugins"] = tuple(x for x in own["no_plugins"] if x not in replaced)
    own["plugin_options"] = {name: x for name, x in tables.items() if name not in replaced}
    try:
        settings = Settings(**values)
    except InvalidRun as error:
        key = error.field.removeprefix("settings.")
        places = [origins[x] for x in (key, *origins) if x in origins and (x == key or x in error.rule)]
        raise click.UsageError(f"{', '.join(dict.fromkeys(places))}: {key} {error.rule}") from None
    return Config(**own, settings=settings, origins=origins)


def option(key: str) -> str:
    """The option for a key."""
    return "--" + key.replace("_", "-").replace("plugins", "plugin")


def _pyproject(path: Path) -> Iterator[Given]:
    tool = _toml(path).get("tool", {})
    table = tool.get("runqueue", {}) if isinstance(tool, dict) else {}
    return _table(table, f"[tool.runqueue] in {path.name}", f"[tool.runqueue.{OPTIONS}.{{}}] in {path.name}")


def _own_file(path: Path) -> Iterator[Given]:
    return _table(_toml(path), path.name, f"[{OPTIONS}.{{}}] in {path.name}")


def _table(table: Any, place: str, place_of_plugin: str) -> Iterator[Given]:
    if not isinstance(table, dict):
        raise click.UsageError(f"{place}: must be a table")
    for key, value in table.items():
        if key == OPTIONS and isinstance(value, dict):
            yield from _plugin_tables(value, place_of_plugin)
            continue
        if key not in DEFAULTS:
            raise click.UsageError(f"{place}: unknown key {key!r}{_near(key)}")
        yield Given(key, value, f"{key} in {place}")


def _plugin_tables(tables: Mapping[str, Any], place: str) -> Iterator[Given]:
    for name, options in tables.items():
        if not isinstance(options, dict):
            raise click.UsageError(f"{name!r} in {place.format('NAME')}: must be a table of options of the plugin")
        yield Given(f"{OPTIONS}.{name}", options, place.format(name))


def _environment(environ: Mapping[str, str]) -> Iterator[Given]:
    """Variables with our prefix. An unknown one is an error only where it looks like a slip.

    Others may be there for a reason: a service named `runqueue` makes Kubernetes set RUNQUEUE_PORT.
    """
    for name, value in environ.items():
        if not name.startswith(PREFIX) or not value:
            continue
        key = name.removeprefix(PREFIX).lower()
        if key in DEFAULTS:
            yield Given(key, value, name)
        elif near := get_close_matches(key, DEFAULTS, n=1, cutoff=0.8):
            raise click.UsageError(f"{name}: no such setting; did you mean {PREFIX}{near[0].upper()}?")


def _near(key: str) -> str:
    near = get_close_matches(key.lower().replace("-", "_"), DEFAULTS, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _toml(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise click.UsageError(f"{path.name}: cannot be read: {reason}") from None


def _converted(given: Given) -> Any:
    """The value in the type of its key; a text, as variables are, is read. The value itself is never shown."""
    default, value = DEFAULTS[given.key], given.value
    if isinstance(default, tuple):
        items = [x.strip() for x in value.split(",")] if isinstance(value, str) else value
        if isinstance(items, (list, tuple)) and all(isinstance(x, str) for x in items):
            return tuple(x for x in items if x)
        raise click.UsageError(f"{given.origin}: must be a list of names")
    if default is None or isinstance(default, str):
        if isinstance(value, str):
            return value
        raise click.UsageError(f"{given.origin}: must be a text")
    if isinstance(default, bool):
        if isinstance(value, str):
            value = _WORDS.get(value.strip().lower())
        if isinstance(value, bool):
            return value
        raise click.UsageError(f"{given.origin}: must be true or false")
    return _number(given, type(default))


def _number(given: Given, kind: type[int] | type[float]) -> int | float:
    value = given.value
    try:
        if isinstance(value, str) or (type(value) in (int, float) and (kind is float or type(value) is int)):
            number = kind(value)
            if math.isfinite(number):
                return number
    except (ValueError, OverflowError):
        pass
    raise click.UsageError(f"{given.origin}: must be a {'whole ' if kind is int else ''}number")
