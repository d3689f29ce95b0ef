"""Finding plugins: by name in the entry-point group `runqueue`, or as objects; and making those that take options."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any

from runqueue.errors import PluginError

GROUP = "runqueue"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A plugin, ready to be registered."""

    name: str
    plugin: object
    version: str = ""
    source: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


def installed() -> EntryPoints:
    """The entry points of all plugins that are installed."""
    return entry_points(group=GROUP)


def load(given: str | object, options: Mapping[str, Any], there: EntryPoints) -> Loaded:
    """The plugin that a name or an object stands for, made with its options.

    Raises PluginError that says what is installed, what failed and why, and what was probably meant.
    """
    if not isinstance(given, str):
        name = name_of(given)
        return Loaded(name, _made(name, given, options), source=type(given).__module__, options=options)
    entry = _entry(given, there)
    try:
        found = entry.load()
    except Exception as error:
        raise PluginError(f"the plugin {given!r} ({entry.value}) cannot be imported: {error!r}") from error
    owner = f"{entry.dist.name}" if entry.dist else "?"
    version = entry.dist.version if entry.dist else ""
    return Loaded(given, _made(given, found, options), version, owner, options)


def name_of(plugin: object) -> str:
    """How an object that was given as a plugin is called: its `name`, else that of its module or class."""
    name = getattr(plugin, "name", None)
    if isinstance(name, str):
        return name
    told: str = getattr(plugin, "__name__", type(plugin).__name__)
    return told


def near(name: str, known: Any) -> str:
    """`; did you mean 'x'?` where one of the known names is near."""
    found = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {found[0]!r}?" if found else ""


def _entry(name: str, there: EntryPoints) -> EntryPoint:
    found = tuple(there.select(name=name))
    if not found:
        names = sorted(there.names)
        raise PluginError(
            f"no plugin {name!r} is installed{near(name, names)} (installed: {', '.join(names) or 'none'}); "
            "install the distribution that brings it"
        )
    if len(found) > 1:
        owners = ", ".join(x.dist.name if x.dist else "?" for x in found)
        raise PluginError(f"several distributions bring a plugin {name!r}: {owners}")
    return found[0]


def _made(name: str, found: Any, options: Mapping[str, Any]) -> object:
    if not inspect.isclass(found):
        if options:
            given = ", ".join(sorted(options))
            raise PluginError(f"the plugin {name!r} takes no options, but was given {given}", f"plugin.{name}")
        return found
    takes = inspect.signature(found).parameters
    for option in options:
        if option not in takes:
            known = ", ".join(takes) or "none"
            raise PluginError(
                f"the plugin {name!r} has no option {option!r}{near(option, takes)} (options: {known})",
                f"plugin.{name}",
            )
    try:
        return found(**options)
    except Exception as error:
        raise PluginError(f"the plugin {name!r} refuses its options: {error}", f"plugin.{name}") from error
