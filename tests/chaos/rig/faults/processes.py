"""F1 and F2: worker processes that are killed, or frozen for longer than their leases live."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from rig.faults.fault import Fault
from rig.history import now
from rig.world import Post

TRIES = 6
"""How many holders are frozen and found to have just released, before a strike is given up."""


class Kill(Fault):
    """F1: SIGKILL for a pool child, or for a whole worker with all its children."""

    def strike(self) -> bool:
        """Kill; a worker is replaced by the round, a child by its worker."""
        posts = [post for post in self.world.posts if post.ready]
        if self.plan.how == "worker":
            return self._kill_worker(self.pick(posts))
        children = [pid for post in posts if post.plan.pool == "prefork" for pid in post.worker.child_pids()]
        victim = self.pick(children)
        if victim is None:
            return False
        self.target = victim
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        self.world.holders.forget(victim)
        return True

    def _kill_worker(self, post: Post | None) -> bool:
        if post is None:
            return False
        self.target = post.worker.pid
        self.detail = f"worker {post.plan.name}"
        for pid in (post.worker.pid, *post.worker.child_pids()):
            self.world.holders.forget(pid)
        post.worker.kill()
        return True


class Freeze(Fault):
    """F2: SIGSTOP for a process that holds a lease, and SIGCONT when it has slept for long enough."""

    began = 0.0
    held: list[str]

    def strike(self) -> bool:
        """Freeze a holder, and make sure that it still was one when it froze; or any worker's main process."""
        self.held = []
        if self.plan.how == "main":
            post = self.pick([post for post in self.world.posts if post.ready])
            return post is not None and self._freeze(post.worker.pid)
        return any(self._freeze_a_holder() for _ in range(TRIES))

    def heal(self) -> None:
        """Let it go on, and note the pause."""
        with suppress(ProcessLookupError):
            os.kill(self.target, signal.SIGCONT)
        self.world.frozen.discard(self.target)
        self.world.history.note(
            "pause", target_pid=self.target, began=self.began, ended=now(), holders=self.held
        )

    def _freeze_a_holder(self) -> bool:
        holders = self.world.holders
        holders.look()
        pid = self.pick([pid for pid in holders.pids() if pid not in self.world.frozen])
        if pid is None or not self._freeze(pid):
            time.sleep(0.01)
            return False
        # What it wrote before it froze is in its history now.
        holders.look()
        self.held = holders.of(pid)
        if not self.held:
            self._thaw(pid)
        return bool(self.held)

    def _freeze(self, pid: int) -> bool:
        if pid in self.world.frozen:
            return False
        try:
            os.kill(pid, signal.SIGSTOP)
        except ProcessLookupError:
            self.world.holders.forget(pid)
            return False
        self.target, self.began = pid, now()
        self.world.frozen.add(pid)
        return True

    def _thaw(self, pid: int) -> None:
        os.kill(pid, signal.SIGCONT)
        self.world.frozen.discard(pid)
