"""F3, F4 and F5: a lease server that dies, and one that loses what it knew."""

from __future__ import annotations

import shutil

from rig.faults.fault import Fault

PATTERNS = {"leases": "fence:*:lease:*", "counters": "fence:*:token:*", "one key": "fence:*"}


class Restart(Fault):
    """F3: SIGKILL for the lease server; it comes back with what its log had, or with nothing."""

    def strike(self) -> bool:
        """Kill it."""
        self.loses_data = self.plan.how == "without data"
        self.world.leases.kill()
        return True

    def heal(self) -> None:
        """Start it again."""
        if self.loses_data:
            shutil.rmtree(self.world.leases.directory / "appendonlydir", ignore_errors=True)
        self.world.leases.start()


class LostData(Fault):
    """F4: somebody empties the database, or deletes single keys of it."""

    loses_data = True

    def strike(self) -> bool:
        """Delete."""
        client = self.world.client
        if self.plan.how == "flush":
            client.flushall()
            return True
        names = sorted(client.scan_iter(PATTERNS[self.plan.how], count=1000))
        if self.plan.how == "one key":
            names = [name] if (name := self.pick(names)) else []
        self.target = names[:5]
        return bool(names) and bool(client.delete(*names))


class LostScripts(Fault):
    """F5: the server forgets every script."""

    def strike(self) -> bool:
        """Flush the script cache."""
        return bool(self.world.client.script_flush())
