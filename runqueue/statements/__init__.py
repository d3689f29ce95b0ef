"""Statements: pure functions from tables to SQLAlchemy Core executables. No connection, configuration or clock.

Each is built once per install and executed many times. Statuses are literals, for a bound status costs a generic plan
its partial index. What a statement must touch is named by `id = any(…)`, which every plan, with fresh, stale or missing
statistics, serves from the primary key; the partial indexes are kept out of it by testing `locked_until is not null`,
which a constraint makes equal to `status = 'leased'` and the planner cannot know.
"""
