"""Revisions of the tables of graph state, applied where the plugin `langgraph` is named."""
