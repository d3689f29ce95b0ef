"""The revisions: frozen snapshots that never import the live tables."""
