"""
Fenced writes through Django's ORM, on each database: the app ``payouts`` of `django_project`.

Each test runs its lines in a process of its own and gets back what they leave in `answer`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from bench.drivers import parameters

pytest.importorskip("django", reason="Django is not installed")

PROJECT = Path(__file__).parents[1] / "django_project"
ROOT = PROJECT.parents[2]

PRELUDE = """
import json
import threading
import django
django.setup()
from celery_fence import ConfigError, StaleToken, hold
from celery_fence.errors import UnfencedWrite
from celery_fence.fencing.gate import pass_gate
from celery_fence.fencing.trigger import FenceTrigger, fencing_columns, trigger_refusals
from celery_fence.fencing.trigger.definition import find
from celery_fence.fencing.writer import Writer
from celery_fence.stores import from_url
from django.core.management import call_command
from django.db import connection, connections, transaction
from shop import celery_app as app
call_command("migrate", "payouts", verbosity=0)
from payouts.models import Line, Payout
from payouts import tasks
leases = from_url("memory://", prefix="shop")
def ask(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return [list(row) for row in cursor.fetchall()]
def row(payout):
    payout.refresh_from_db()
    return [payout.state, payout.last_fencing_token, payout.last_fencing_owner]
def raised(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except Exception as error:
        return type(error).__name__
"""

ENGINES = {"postgresql": ("postgresql", "postgres"), "mariadb": ("mysql", "root")}


@pytest.fixture
def in_django(fresh_database, tmp_path, name):
    database = fresh_database(name)
    server = {}
    if name in ENGINES:
        engine, user = ENGINES[name]
        server = {
            "ENGINE": f"django.db.backends.{engine}",
            "HOST": "127.0.0.1",
            "USER": user,
            "NAME": database.place,
        }
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(PROJECT), str(ROOT)]),
        "DJANGO_SETTINGS_MODULE": "shop.settings",
        "SHOP_DATABASE": str(tmp_path / "shop.sqlite3"),
        "SHOP_SERVER": json.dumps(server),
    }

    def run(lines):
        done = subprocess.run(
            [sys.executable, "-c", f"{PRELUDE}\n{textwrap.dedent(lines)}\nprint(json.dumps(answer))"],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


each_database = pytest.mark.parametrize("name", parameters())


@each_database
def test_a_fenced_task_writes_through_the_orm_and_an_older_one_is_refused(in_django):
    answer = in_django("""
        payout = Payout.objects.create()
        scope = f"payout:{payout.pk}"
        token = tasks.pay.delay(payout.pk).get()
        again = tasks.pay.delay(payout.pk).get()
        after = row(payout)
        stale = Writer(scope, token, "frozen")

        def write():
            with transaction.atomic():
                pass_gate(connection, scope, stale)
                Line.objects.create(payout=payout)

        def passing(token, fail=False):
            with transaction.atomic():
                pass_gate(connection, "k", Writer("k", token, "x"))
                if fail:
                    raise ValueError

        answer = {
            "grows": again > token,
            "row": after[:2] == ["paid", again],
            "mark": ask("SELECT scope, last_fencing_token FROM fence_gates WHERE scope != 'k'") == [[scope, again]],
            "stale": raised(write),
            "lines": Line.objects.count(),
            "rolled back": [raised(passing, 7, fail=True), raised(passing, 6), raised(passing, 5)],
            "outside": raised(pass_gate, connection, scope, Writer(scope, again + 1, "x")),
            "alias": raised(pass_gate, connections["default"], scope, Writer(scope, again + 1, "x")),
        }
    """)

    assert answer == {
        "grows": True,
        "row": True,
        "mark": True,
        "stale": "StaleToken",
        "lines": 2,
        "rolled back": ["ValueError", None, "StaleToken"],
        "outside": "ConfigError",
        "alias": "ConfigError",
    }


@each_database
def test_the_trigger_refuses_the_save_of_an_instance_that_became_old(in_django, name):
    answer = in_django("""
        payout = Payout.objects.create()
        old = Payout.objects.get(pk=payout.pk)
        tasks.pay.delay(payout.pk).get()
        before = row(payout)

        def save(instance):
            with trigger_refusals(), transaction.atomic():
                instance.state = "overwritten"
                instance.save()

        answer = {"old": raised(save, old), "same": row(payout) == before}
        answer["unfenced"] = raised(save, Payout.objects.only("state").get(pk=payout.pk))
        with hold(f"payout:{payout.pk}", app=app) as lease:
            payout.fence()
            save(payout)
            answer["fenced"] = row(payout) == ["overwritten", lease.token, lease.owner]
    """)

    unfenced = None if name == "mariadb" else "UnfencedWrite"
    assert answer == {"old": "StaleToken", "same": True, "unfenced": unfenced, "fenced": True}


@each_database
def test_the_migration_can_be_undone_and_done_again_and_nothing_is_missing_in_it(in_django):
    answer = in_django("""
        def there():
            tables = connection.introspection.table_names()
            with connection.cursor() as cursor:
                columns = connection.introspection.get_table_description(cursor, "payouts_payout")
            triggers = FenceTrigger.found(ask(find(connection.vendor).replace(":schema", "NULL")))
            return ["fence_gates" in tables, len(columns), [trigger.table for trigger in triggers]]

        forwards = there()
        call_command("migrate", "payouts", "0001", verbosity=0)
        ask("SELECT 1")
        backwards = there()
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO payouts_payout (state) VALUES ('old')")
        call_command("migrate", "payouts", verbosity=0)
        with connection.cursor() as cursor:  # as a process from before the migration does
            cursor.execute("INSERT INTO payouts_payout (state) VALUES ('late')")
        rows = ask("SELECT state, last_fencing_token, last_fencing_owner FROM payouts_payout ORDER BY id")
        call_command("makemigrations", "payouts", check=True, dry_run=True, verbosity=0)
        answer = [forwards, backwards, there(), rows]
    """)

    there = [True, 4, ["payouts_payout"]]
    assert answer == [there, [False, 2, []], there, [["old", 0, None], ["late", 0, None]]]


@pytest.mark.parametrize("name", parameters("sqlite"))
def test_a_hold_until_the_commit_ends_with_the_outermost_atomic_block(in_django):
    answer = in_django("""
        def held():
            return leases.holder("k") is not None

        answer = {}
        with transaction.atomic():
            with hold("k", app=app, until_commit=connection) as first:
                pass
            with hold("k", app=app, until_commit=connection) as second:
                answer["shared"] = first is second
            answer["before commit"] = held()
        answer["after commit"] = held()

        def fail():
            with transaction.atomic():
                with hold("k", app=app, until_commit=connection):
                    pass
                answer["before rollback"] = held()
                raise ValueError

        raised(fail)
        answer["after rollback"] = held()
        with transaction.atomic():
            def inner():
                with transaction.atomic(), hold("k", app=app, until_commit=connections["default"]):
                    raise ValueError
            raised(inner)
            answer["after savepoint"] = held()
        answer["at the end"] = held()
        with hold("k", app=app, until_commit=connection):
            pass
        answer["without a transaction"] = held()
        transaction.set_autocommit(True)
        try:
            with transaction.atomic():
                with hold("k", app=app, until_commit=connection):
                    pass
                connection.close()
        except Exception:
            pass
        answer["after close"] = held()
    """)

    assert answer == {
        "shared": True,
        "before commit": True,
        "after commit": False,
        "before rollback": True,
        "after rollback": False,
        "after savepoint": True,
        "at the end": False,
        "without a transaction": False,
        "after close": False,
    }


@pytest.mark.parametrize("name", parameters("postgresql", "mariadb"))
def test_a_second_holder_waits_for_the_end_of_the_first_ones_atomic_block(in_django):
    answer = in_django("""
        order = []
        begun = threading.Event()

        def second():
            begun.set()
            with transaction.atomic():
                pass_gate(connection, "k", Writer("k", 6, "second"))
                order.append(["second sees", Line.objects.count()])
            connection.close()

        payout = Payout.objects.create()
        thread = threading.Thread(target=second)
        with transaction.atomic():
            pass_gate(connection, "k", Writer("k", 5, "first"))
            thread.start()
            begun.wait(30)
            thread.join(0.3)  # if it didn't wait, it would be through by then
            Line.objects.create(payout=payout)
            order.append("first writes")
        thread.join(30)
        answer = order
    """)

    assert answer == ["first writes", ["second sees", 1]]
