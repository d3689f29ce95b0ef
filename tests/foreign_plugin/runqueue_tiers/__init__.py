"""Somebody else's plugins: they import public names of runqueue only."""
