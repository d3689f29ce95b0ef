"""What both kinds of env.py tell alembic. `-x` stands for what other applications would write down."""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import URL, make_url

from host_app.models import Base
from runqueue.schema import migrate


def configuration(x: dict[str, str]) -> dict[str, Any]:
    """The arguments of `context.configure`, without the connection."""
    schema = x.get("runqueue", "runqueue")
    shared = schema == x.get("search_path", "public")
    options: dict[str, Any] = {
        "target_metadata": Base.metadata,
        "include_schemas": x.get("schemas") == "all",
        "compare_type": True,
        "compare_server_default": True,
        "runqueue_schema": schema,
    }
    if x.get("careless") != "yes":
        options["include_name"] = partial(migrate.include_name, schema=schema, shared=shared)
    return options


def database(x: dict[str, str]) -> URL:
    """Where the shop's tables are."""
    url = make_url(x["url"])
    if "search_path" in x:
        return url.update_query_dict({"options": f"-csearch_path={x['search_path']}"})
    return url
