"""Records in Django's transactions, on each database: the tables by migrations, the effect through the ORM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench.drivers import parameters

pytest.importorskip("django", reason="Django is not installed")

ROOT = Path(__file__).parents[3]

PROGRAM = """
import json, os
from django.conf import settings
settings.configure(DATABASES={"default": json.loads(os.environ["DATABASE"])}, INSTALLED_APPS=[])
import django
django.setup()
from django.db import connection, transaction
from django.db.migrations.state import ProjectState
from celery_fence.errors import AlreadyDone, ConfigError
from celery_fence.fencing.django.operations import CreateFenceRecords
from celery_fence.fencing.idempotency import claim, delete_records, find_record, list_records, once
from celery_fence.fencing.writer import Writer

def migrate(way):
    with connection.schema_editor() as editor:
        getattr(CreateFenceRecords(), f"database_{way}s")("app", editor, ProjectState(), ProjectState())

def effects():
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM effects")
        return cursor.fetchone()[0]

def effect():
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO effects (work) VALUES (%s)", ["100%"])
    return "50% of 100%"

def pay(token, fail=False):
    with transaction.atomic():
        record = claim(connection, key="payment:100%", lease=Writer("tenant:7", token, "x"))
        record.complete(effect())
        if fail:
            raise ZeroDivisionError

def outcome(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except AlreadyDone as done:
        return done.result
    except Exception as error:
        return type(error).__name__

def step(token):
    with transaction.atomic():
        return once(connection, "mail:%s", effect, key="batch", lease=Writer("tenant:7", token, "x"))

migrate("forward")
with connection.cursor() as cursor:
    cursor.execute("CREATE TABLE effects (work VARCHAR(80) NOT NULL)")
answer = {
    "fails": [outcome(pay, 5, fail=True), effects(), find_record(connection, "payment:100%") is None],
    "pays": [outcome(pay, 5), outcome(pay, 6), effects()],
    "steps": [step(5), step(6), effects()],
    "listed": [[each.key, each.step] for each in list_records(connection)],
    "outside": outcome(claim, connection, key="k", lease=Writer("k", 1, "x")),
    "deleted": delete_records(connection, older_than=1000),
}
migrate("backward")
answer["tables"] = "fence_records" in connection.introspection.table_names()
print(json.dumps(answer))
"""

ENGINES = {"postgresql": ("postgresql", "postgres"), "mariadb": ("mysql", "root")}


@pytest.mark.parametrize("name", parameters())
def test_effect_and_record_are_one_in_django_s_transactions(databases, name):
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    if name in ENGINES:
        engine, user = ENGINES[name]
        database = {
            "ENGINE": f"django.db.backends.{engine}",
            "HOST": "127.0.0.1",
            "USER": user,
            "NAME": databases(name).place,
        }
        databases(name).run("DROP TABLE effects")
        databases(name).run("DROP TABLE fence_records")

    done = subprocess.run(
        [sys.executable, "-c", PREPARE + PROGRAM],
        env={**os.environ, "PYTHONPATH": str(ROOT), "DATABASE": json.dumps(database)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "fails": ["ZeroDivisionError", 0, True],
        "pays": [None, "50% of 100%", 1],
        "steps": ["50% of 100%", "50% of 100%", 2],
        "listed": [["batch", "mail:%s"], ["payment:100%", ""]],
        "outside": "ConfigError",
        "deleted": 0,
        "tables": False,
    }


PREPARE = """
try:
    import MySQLdb
except ImportError:
    import pymysql
    pymysql.version_info = (2, 2, 7, "final", 0)
    pymysql.install_as_MySQLdb()
"""
