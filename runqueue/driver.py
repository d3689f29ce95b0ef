"""What only the driver knows of a connection."""

from __future__ import annotations

from sqlalchemy import Connection


def is_autocommit(connection: Connection) -> bool:
    """Whether each statement commits by itself, so that there is no transaction and can be no savepoint."""
    driver = connection.connection.driver_connection
    return bool(driver.autocommit)  # type: ignore[union-attr]  # psycopg's connection, sync or async
