"""runqueue's alembic environment and revisions."""
