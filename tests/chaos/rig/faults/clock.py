"""F10: the lease server's clock steps; a worker with a wrong clock is a part of the plan (`WorkerPlan.skew`)."""

from __future__ import annotations

from rig.faults.fault import Fault

LONGEST = 3600.0
"""Seconds of the largest step; what the store remembers is kept for longer than that."""


class SteppedClock(Fault):
    """
    Forward beyond the margin, so that leases end early, or back, so that they live longer; then right again.

    Only where the server answers: one that is asleep (F7) under libfaketime would sleep for the step as well.
    """

    def strike(self) -> bool:
        """Step."""
        size = self.world.plan.ttl * 0.5 if self.plan.roll < 0.3 else self.plan.roll * LONGEST
        self.target, self.step = "server", size if self.plan.how == "forward" else -size
        self.detail = f"{self.step:+.1f} s"
        self.world.client.ping()
        self.world.offset.write_text(f"{self.step:+.3f}")
        return True

    def heal(self) -> None:
        """The right time again."""
        self.world.client.ping()
        self.world.offset.write_text("+0")
