"""Plugins of tests: installed by name, as entry points of a distribution that is not there."""

from __future__ import annotations

from importlib.metadata import Distribution, EntryPoint, EntryPoints
from typing import Any

import pytest


class TestDistribution(Distribution):
    """A distribution that has a name and a version only."""

    __test__ = False

    def read_text(self, filename: str) -> str | None:
        return "Metadata-Version: 2.1\nName: of-tests\nVersion: 9.8.7\n" if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        raise NotImplementedError


class Loads(EntryPoint):
    """An entry point that loads what is told in `what`; an exception is raised."""

    what: Any

    def load(self) -> Any:
        if isinstance(self.what, Exception):
            raise self.what
        return self.what


def installed_plugins(monkeypatch: pytest.MonkeyPatch, **plugins: Any) -> None:
    """Let these be installed too, beside the bundled ones."""
    from runqueue.hooks import loading

    real = loading.entry_points(group=loading.GROUP)
    more = []
    for name, plugin in plugins.items():
        entry = Loads(name, f"of_tests:{name}", loading.GROUP)._for(TestDistribution())
        vars(entry)["what"] = plugin
        more.append(entry)
    together = EntryPoints((*real, *more))
    monkeypatch.setattr(loading, "entry_points", lambda *, group: together.select(group=group))
