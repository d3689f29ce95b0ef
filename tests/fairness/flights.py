"""How many runs of a tenant were in flight at once, read from the audit of every change."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import Engine, text

CHANGES = text("""
select a.at, r.tenant_id, (a.new_status = 'leased')::int - (a.old_status = 'leased')::int as change
from runqueue_audit.audit a join runqueue.agent_runs r on r.id = a.run_id
where a.op = 'UPDATE' and (a.new_status = 'leased') <> (a.old_status = 'leased')
order by a.at, change
""")


def most_in_flight(engine: Engine) -> Counter[str]:
    """The most runs that each tenant had in flight at the same time.

    Both ends of a lease are recorded before they are committed, and a claim that obeys a cap begins after the ends that
    it counts on are: so the times can only show less overlap than there was room for, never more.
    """
    now, most = Counter[str](), Counter[str]()
    with engine.connect() as connection:
        for _, tenant, change in connection.execute(CHANGES):
            now[tenant] += change
            most[tenant] = max(most[tenant], now[tenant])
    return most


def jain(shares: Counter[str]) -> float:
    """Jain's index of fairness: 1 where all have the same, 1/n where one has all (Jain, Chiu, Hawe 1984)."""
    values = list(shares.values())
    return sum(values) ** 2 / (len(values) * sum(x * x for x in values))
