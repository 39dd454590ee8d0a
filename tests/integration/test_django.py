"""
A Django project with fenced tasks, in `django_project` beside this file.

Django's settings are one to a process, so each test runs its lines in a process of
its own, as a user's `manage.py shell` would, and gets back what they leave in `answer`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from redis import Redis

from celery_fence.testing.servers import embedded_server

pytest.importorskip("django", reason="Django is not installed")

PROJECT = Path(__file__).parent / "django_project"
ROOT = PROJECT.parents[2]

PRELUDE = """
import json
import django
django.setup()
from celery_fence import ConfigError
from celery_fence.task.settings import FenceSettings
from django.conf import settings
from django.core.management import call_command
from django.db import transaction
from django.test import override_settings
from shop import celery_app as app
call_command("migrate", run_syncdb=True, verbosity=0)
from orders.models import Order
from orders import tasks
"""


@pytest.fixture
def environment(tmp_path):
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(PROJECT), str(ROOT)]),
        "DJANGO_SETTINGS_MODULE": "shop.settings",
        "SHOP_DATABASE": str(tmp_path / "shop.sqlite3"),
    }


@pytest.fixture
def in_django(environment, tmp_path):
    def run(lines, **more):
        code = f"{PRELUDE}\n{textwrap.dedent(lines)}\nprint(json.dumps(answer))"
        done = python(code, {**environment, **more}, tmp_path)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def python(code, environment, folder):
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_settings_come_in_by_celerys_namespace(in_django):
    assert in_django("""
        found = FenceSettings.of(app)
        answer = [found.ttl, found.prefix, found.url]
    """) == [12.5, "shop", "memory://"]


def test_a_task_runs_under_them(in_django):
    assert in_django("answer = tasks.key_and_ttl.delay(7).get()") == ["order:7", 12.5]


def test_override_settings_counts_at_once_and_only_inside(in_django):
    assert in_django("""
        answer = [FenceSettings.of(app).ttl]
        with override_settings(CELERY_FENCE_TTL=30.0):
            answer += tasks.key_and_ttl.delay(7).get()[1:]
            with override_settings(CELERY_FENCE_TTL=40.0):
                answer += tasks.key_and_ttl.delay(7).get()[1:]
            answer += tasks.key_and_ttl.delay(7).get()[1:]
        answer += tasks.key_and_ttl.delay(7).get()[1:]
    """) == [12.5, 30.0, 40.0, 30.0, 12.5]


def test_an_assignment_to_djangos_settings_counts_at_once(in_django):
    assert (
        in_django("""
        FenceSettings.of(app)
        settings.CELERY_FENCE_TTL = 30.0
        answer = FenceSettings.of(app).ttl
    """)
        == 30.0
    )


def test_asking_again_is_cheap_in_spite_of_djangos_slow_look_up(in_django):
    once = in_django("""
        import timeit
        FenceSettings.of(app)
        with override_settings(CELERY_FENCE_TTL=30.0):
            FenceSettings.of(app)
            answer = min(timeit.repeat(lambda: FenceSettings.of(app), number=200, repeat=20)) / 200
    """)

    assert once < 30e-6, f"{once * 1e6:.1f} us"


def test_a_wrong_override_is_named_as_it_was_written(in_django):
    message = in_django("""
        FenceSettings.of(app)
        with override_settings(CELERY_FENCE_TTL="30"):
            try:
                answer = FenceSettings.of(app).ttl
            except ConfigError as error:
                answer = str(error)
    """)

    assert message.startswith("Celery setting 'CELERY_FENCE_TTL' is '30'")


def test_fenced_tasks_are_discovered_beside_the_others(environment, tmp_path):
    done = python(
        """
import django
django.setup()
from shop import celery_app as app
app.loader.import_default_modules()
print(*sorted(name for name in app.tasks if name.startswith("orders.")))
""",
        environment,
        tmp_path,
    )

    assert done.stdout.split() == ["orders.tasks.key_and_ttl", "orders.tasks.not_fenced", "orders.tasks.ship"]


def test_a_task_that_isnt_fenced_stays_what_it_is(in_django):
    assert in_django("answer = tasks.not_fenced.delay().get()") == "ran"


def test_delay_on_commit_sends_a_fenced_task_when_the_transaction_commits(in_django):
    before, after, token = in_django("""
        order = Order.objects.create()
        with transaction.atomic():
            tasks.ship.delay_on_commit(order.pk)
            order.refresh_from_db()
            answer = [order.state]
        order.refresh_from_db()
        answer += [order.state, order.token]
    """)

    assert (before, after) == ("open", "shipped")
    assert token > 0


def test_apply_async_on_commit_takes_celerys_options(in_django):
    assert (
        in_django("""
        order = Order.objects.create()
        with transaction.atomic():
            tasks.ship.apply_async_on_commit(args=[order.pk], queue="shipping")
        order.refresh_from_db()
        answer = order.state
    """)
        == "shipped"
    )


def test_after_a_rollback_nothing_is_sent(in_django):
    assert (
        in_django("""
        order = Order.objects.create()
        try:
            with transaction.atomic():
                tasks.ship.delay_on_commit(order.pk)
                raise ValueError
        except ValueError:
            order.refresh_from_db()
        answer = order.state
    """)
        == "open"
    )


def test_a_fenced_task_has_everything_that_djangos_own_task_class_adds(in_django):
    assert in_django("""
        from celery import Task
        from celery.contrib.django.task import DjangoTask
        added = set(dir(DjangoTask)) - set(dir(Task))
        answer = [sorted(added - set(dir(tasks.ship))), "delay_on_commit" in added]
    """) == [[], True]


def test_fenced_tasks_may_be_the_default_of_the_app(in_django):
    fenced, not_fenced = in_django("""
        from celery import Celery
        from celery_fence.task.options import TaskOptions
        other = Celery("other", task_cls="celery_fence:FencedTask", set_as_current=False)
        other.config_from_object("django.conf:settings", namespace="CELERY")

        @other.task(lock_key="order:<order_id>")
        def fenced(order_id):
            return order_id

        @other.task
        def not_fenced(order_id):
            return order_id

        answer = [bool(TaskOptions.of(task).lock_key) for task in (fenced, not_fenced)]
    """)

    assert (fenced, not_fenced) == (True, False)


def test_a_worker_with_a_misspelt_setting_doesnt_start_and_names_it_as_written(environment, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "shop", "worker", "-P", "solo"],
        env={**environment, "DJANGO_SETTINGS_MODULE": "shop.settings_misspelt"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode != 0
    assert "'CELERY_FENCE_TLL'" in done.stderr.splitlines()[-1]
    assert "Did you mean 'CELERY_FENCE_TTL'?" in done.stderr.splitlines()[-1]


@pytest.fixture
def redis_server():
    with embedded_server() as server:
        yield server


@pytest.fixture
def worker(environment, redis_server, tmp_path):
    """A real worker on a real broker; its lines are shown when the test fails."""
    environment.update(
        SHOP_BROKER=redis_server.url, SHOP_RESULTS=redis_server.url, SHOP_LEASES=redis_server.url
    )
    log = tmp_path / "worker.log"
    with log.open("wb") as lines:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "shop", "worker", "-P", "solo", "-l", "info"],
            env=environment,
            cwd=tmp_path,
            stdout=lines,
            stderr=lines,
        )
    yield
    process.terminate()
    try:
        process.wait(timeout=20)
    finally:
        process.kill()
        process.wait()
        sys.stdout.write(log.read_text())


@pytest.mark.usefixtures("worker")
def test_a_worker_runs_what_was_sent_on_commit_under_a_lease(in_django, redis_server):
    token = in_django("""
        import time
        order = Order.objects.create()
        with transaction.atomic():
            tasks.ship.delay_on_commit(order.pk)
        deadline = time.monotonic() + 30
        while order.state != "shipped" and time.monotonic() < deadline:
            time.sleep(0.05)
            order.refresh_from_db()
        answer = order.token
    """)

    kept = Redis.from_url(redis_server.url).keys("shop:*order:1*")
    assert token > 0
    assert kept, "the token's counter is kept under the prefix of Django's settings"
