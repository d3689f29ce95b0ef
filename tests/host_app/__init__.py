"""A small shop with tables, migrations and an engine of its own, as applications have that take runqueue in."""
