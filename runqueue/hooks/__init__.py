"""The plugin surface: hook specifications, and the manager that calls them."""

from runqueue.hooks.specs import hookimpl, hookspec

__all__ = ["hookimpl", "hookspec"]
