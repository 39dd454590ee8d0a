"""Who comes when the night is over: scripts in raw SQL, which no guard in Python sees."""

from __future__ import annotations

import os
from typing import Final

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError

from example_app.demo.screen import Screen
from example_app.demo.watch import Watch
from example_app.ledger import Run
from example_app.models import JournalEntry

STALE_UPDATE: Final = """
    UPDATE tenants SET balance_cents = opening_cents,
        last_fencing_token = :token, last_fencing_owner = 'a script'
    WHERE id = :tenant
"""

PLAIN_UPDATE: Final = "UPDATE tenants SET balance_cents = opening_cents WHERE id = :tenant"


def write_raw(database_url: str, watch: Watch, frozen: JournalEntry, screen: Screen) -> None:
    """
    Write back the balance that the frozen run had read, as any program could that has the database's URL.

    Once with that run's token, if it had one, and once with none.
    """
    engine = create_engine(database_url)
    try:
        for token in [frozen.token, None] if frozen.token else [None]:
            shown = "the frozen run's token" if token else "no token"
            screen.say(f"RAW SQL: a script with {shown} writes to tenant {frozen.tenant_id}", "warn")
            said = _said_to(engine, frozen.tenant_id, token)
            for line in (said or "written").replace(" (", "\n(").splitlines():
                screen.say(f"  the database: {line}")
            run = Run(task_id=frozen.task_id, who="script", pid=os.getpid(), token=token)
            watch.ledger.note("raw refused" if said else "raw written", frozen.tenant_id, run)
    finally:
        engine.dispose()


def _said_to(engine: Engine, tenant_id: int, token: int | None) -> str:
    """What the database says to such a write, in its own words; empty if it does as it is told."""
    parameters = {"tenant": tenant_id, **({"token": token} if token else {})}
    try:
        with engine.begin() as connection:
            connection.execute(text(STALE_UPDATE if token else PLAIN_UPDATE), parameters)
    except DBAPIError as error:
        return str(error.orig).splitlines()[0]
    return ""
