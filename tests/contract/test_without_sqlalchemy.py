"""Where SQLAlchemy isn't installed, everything that isn't about it can be imported and works."""

from __future__ import annotations

import json
import subprocess
import sys

# A finder that comes first and knows nothing of what a plain installation doesn't have.
BLOCKED = """
import importlib, json, pkgutil, sys


class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("sqlalchemy", "alembic", "django"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Nowhere())
"""

IMPORT_ALL = (
    BLOCKED
    + """
import celery_fence

failed = {}
for module in pkgutil.walk_packages(celery_fence.__path__, "celery_fence.", onerror=lambda name: None):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        failed[module.name] = error.name
print(json.dumps(failed))
"""
)

USE = (
    BLOCKED
    + """
import redis
from celery import Celery
from celery_fence import FencedTask, StaleToken
from celery_fence.fencing.http import WsgiTokenGate
from celery_fence.fencing.streams import FencedStream, MemoryMarks, RedisMarks, Stamp, TokenGate

app = Celery("plain", broker="memory://", backend="cache+memory://")
app.conf.fence_url = sys.argv[1]
client = redis.Redis.from_url(sys.argv[1])
stream = FencedStream(client, "events")


@app.task(base=FencedTask, lock_key="payout:<number>")
def pay(number, *, fencing_token):
    stream.append(f"payout:{number}", {"type": "paid"})
    return fencing_token


first, second = pay(7), pay(7)
try:
    stream.append("payout:7", {"type": "late"}, Stamp("payout:7", first))
except StaleToken:
    print("refused by the stream")
for marks in (MemoryMarks(), RedisMarks(client)):
    gate = TokenGate(marks, emit=lambda event: None)
    print([gate.admits(Stamp.read(fields)) for _, fields in client.xrange("events")][-1],
          gate.admits(Stamp("payout:7", first)))
"""
)


def run(program, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_that_is_not_about_it_can_be_imported():
    failed = json.loads(run(IMPORT_ALL))

    about_it = ("celery_fence.fencing.sqlalchemy", "celery_fence.fencing.django", "celery_fence.stores.sql")
    assert {name: missing for name, missing in failed.items() if not name.startswith(about_it)} == {}


def test_tasks_streams_and_gates_work(client, server):
    assert run(USE, server.url).splitlines() == ["refused by the stream", "True False", "True False"]
