"""Count what the lease server is asked, by its own statistics and by MONITOR."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import redis

SCRIPT_CALLS = ("cmdstat_evalsha", "cmdstat_eval", "cmdstat_fcall", "cmdstat_script|load")
# What a client says once when it connects; the onlooker's own commands are left out by address.
HANDSHAKE = {"HELLO", "AUTH", "SELECT", "CLIENT", "PING"}


@dataclass(slots=True)
class StoreCalls:
    """Filled when the block ends."""

    scripts: int = 0
    commands: Counter[str] = field(default_factory=Counter)


@contextmanager
def counted(client: redis.Redis) -> Iterator[StoreCalls]:
    """
    The calls during the block: *scripts* by `INFO commandstats`, *commands* by name, as sent by clients.

    Commands that scripts run inside the server are no round trips and don't count.
    """
    calls = StoreCalls()
    with client.monitor() as monitor:
        done = threading.Thread(target=_follow, args=(monitor, calls.commands), daemon=True)
        done.start()
        before = _scripts(client)
        yield calls
        calls.scripts = _scripts(client) - before
        client.echo("counted")
        done.join(10)


def _scripts(client: redis.Redis) -> int:
    stats = client.info("commandstats")
    return sum(stats.get(name, {}).get("calls", 0) for name in SCRIPT_CALLS)


def _follow(monitor: redis.client.Monitor, commands: Counter[str]) -> None:
    for entry in monitor.listen():
        name = entry["command"].split(" ", 1)[0].upper()
        if name == "ECHO":
            return
        if entry["client_type"] != "lua" and name not in HANDSHAKE | {"INFO"}:
            commands[name] += 1
