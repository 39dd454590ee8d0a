"""
F13: what a body does to its own process.

``heartbeat`` throws SystemExit into the heartbeat's threads; ``gil`` calls C code that keeps the interpreter's lock
for longer than the TTL; ``fork`` forks a child that ends at once; in ``fork and exit`` it leaves with `sys.exit`,
through everything that celery-fence has on its parent's stack. It ends where Celery's tracer begins: further up
it would write into the pool's pipe, which breaks any Celery worker; and not under gevent, where it would go
on as a second worker on the sockets of the first.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
from types import FrameType
from typing import Any

from celery_fence.locking.duty import Duty

LONGEST_EXIT = 3
"""Seconds after which a fork that hasn't ended is ended by its alarm."""


def strike(scene: Any, plan: dict[str, Any], task_id: str) -> None:
    """Do what the body's *plan* says, and note it as a fault."""
    hook = plan["hook"]
    if hook == "fork and exit" and scene.pool == "gevent":
        hook = "fork"
    facts = {
        "id": f"hook:{task_id}",
        "fault": "F13",
        "loses_data": False,
        "target": os.getpid(),
        "detail": hook,
    }
    scene.history.note("fault", phase="begin", **facts)
    match hook:
        case "heartbeat":
            kill_heartbeat()
        case "gil":
            hold_gil(plan["gil"])
        case "fork":
            fork_and_vanish()
        case "fork and exit":
            fork_and_exit()
    scene.history.note("fault", phase="end", **facts)


def kill_heartbeat() -> bool:
    """Throw SystemExit into the threads of this process's heartbeat and its renewers; False where it has none."""
    threads = [ident for ident, frame in sys._current_frames().items() if _runs_heartbeat(frame)]
    for ident in threads:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(SystemExit))
    return bool(threads)


def hold_gil(seconds: float) -> None:
    """Sleep in C without giving the interpreter's lock back: no other thread of this process runs."""
    ctypes.PyDLL(None).usleep(ctypes.c_uint(int(seconds * 1e6)))


def fork_and_vanish() -> None:
    """Fork a child that ends at once, without any clean-up."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def fork_and_exit() -> None:
    """Fork a child that leaves through its parent's stack, up to `leave_here`."""
    if os.fork() == 0:
        _leaving.append(os.getpid())
        signal.alarm(LONGEST_EXIT)
        sys.exit(0)


def leave_here(**_: Any) -> None:
    """End such a child, with its exit hooks. For Celery's `task_postrun`: the tracer's first word after our last."""
    if os.getpid() in _leaving:
        atexit._run_exitfuncs()
        os._exit(0)


_leaving: list[int] = []


def _runs_heartbeat(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code is Duty._run.__code__:
            return True
        frame = frame.f_back
    return False
