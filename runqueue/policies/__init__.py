"""The claim policies, by name."""

from __future__ import annotations

from importlib.metadata import entry_points

from runqueue.errors import PluginError
from runqueue.policies.base import ClaimPolicy
from runqueue.policies.reaper import Reaper
from runqueue.policies.takeover import Takeover

GROUP = "runqueue.policies"
"""The entry-point group in which other distributions bring policies."""

__all__ = ["ClaimPolicy", "Reaper", "Takeover", "policy"]


def policy(claim: str | ClaimPolicy) -> ClaimPolicy:
    """The policy that `claim` names or is. Raises PluginError for a name that nobody brings."""
    if not isinstance(claim, str):
        if isinstance(claim, ClaimPolicy):
            return claim
        raise PluginError(f"claim must be a policy's name or a ClaimPolicy, not {claim!r}")
    known: dict[str, type[ClaimPolicy]] = {"reaper": Reaper, "takeover": Takeover}
    if claim in known:
        return known[claim]()
    found = entry_points(group=GROUP, name=claim)
    if not found:
        others = sorted({*known, *(x.name for x in entry_points(group=GROUP))})
        raise PluginError(f"no claim policy {claim!r}: there are {', '.join(others)}")
    try:
        made = next(iter(found)).load()()
    except Exception as error:
        raise PluginError(f"the claim policy {claim!r} cannot be loaded: {error!r}") from error
    if not isinstance(made, ClaimPolicy):
        raise PluginError(f"the claim policy {claim!r} lacks a method of ClaimPolicy: {made!r}")
    return made
