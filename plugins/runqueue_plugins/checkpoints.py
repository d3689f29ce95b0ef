"""The default checkpoint store: the library's own table, in the statement that checks the fence."""

from __future__ import annotations

from runqueue import InvalidRun, KeepLast, Settings, hookimpl


class Checkpoints:
    """Keep the last `keep` states of a run, each at most `limit` bytes of JSON; without, as the settings say."""

    def __init__(self, keep: int | None = None, limit: int | None = None) -> None:
        for name, value in (("keep", keep), ("limit", limit)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise InvalidRun(name, f"must be a whole number above 0, not {value!r}")
        self._keep = keep
        self._limit = limit

    @hookimpl
    def runqueue_checkpoint_store(self, settings: Settings) -> KeepLast:
        """The newest state is what the next attempt starts from; older ones are for people."""
        return KeepLast(self._keep or settings.checkpoints_kept, self._limit or settings.checkpoint_limit)
