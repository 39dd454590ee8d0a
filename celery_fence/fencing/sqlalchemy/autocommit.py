"""Whether a connection commits each statement by itself, so that neither a lock nor a rollback reaches further."""

from __future__ import annotations

from sqlalchemy import Connection

from celery_fence.fencing.gate.dbapi import DbapiPlace


def autocommits(connection: Connection) -> bool:
    """By the isolation level that was set, or by what the driver was told behind SQLAlchemy's back; asks nobody."""
    level = connection.get_execution_options().get("isolation_level")
    level = level or getattr(connection.dialect, "_on_connect_isolation_level", None)
    if level == "AUTOCOMMIT":
        return True
    driven = connection.connection.driver_connection
    homes = [each.__module__.split(".")[0] for each in type(driven).__mro__]
    place = DbapiPlace.find(driven, homes)
    return place is not None and place.driver.autocommits(driven)
