"""`celery fence ...` as a person or a script runs it: in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

from celery_fence.locking.store import Claim, Facts, Granted

INTEGRATION = Path(__file__).parents[1]
ROOT = INTEGRATION.parents[1]


def run(*words, env=None, cwd=None, answer=""):
    environment = {name: text for name, text in os.environ.items() if name != "COLUMNS"}
    environment |= {"PYTHONPATH": f"{INTEGRATION}{os.pathsep}{ROOT}", **(env or {})}
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=cwd or ROOT, env=environment, input=answer, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def take(store, key="tenant:7:sync", ttl=60.0, **facts):
    claim = Claim(
        key, uuid.uuid4().hex, ttl, Facts(**{"task_name": "billing.sync", "task_id": "0d3c", **facts})
    )
    granted = store.acquire(claim)
    assert isinstance(granted, Granted)
    return claim, granted


def document(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
