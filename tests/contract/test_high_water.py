"""What every store of high-water marks answers."""

from __future__ import annotations

import random
import sqlite3
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import pytest
import redis
from sqlalchemy import create_engine, event
from sqlalchemy.exc import OperationalError

from celery_fence.errors import ConfigError
from celery_fence.fencing.gate import create_gates
from celery_fence.fencing.high_water import Mark, MemoryMarks, RedisMarks
from celery_fence.fencing.sqlalchemy import SqlMarks
from celery_fence.testing.clock import FakeClock

AWKWARD = ["tenant:7", "a b\n\0{x}:%41", "schlüssel:€", "x" * 3000]


@contextmanager
def decoding(request):
    with redis.Redis.from_url(request.getfixturevalue("server").url, decode_responses=True) as client:
        yield RedisMarks(client)


@contextmanager
def sqlite(request):
    url = f"sqlite:///{request.getfixturevalue('tmp_path')}/marks.db"
    yield from database(create_engine(url, connect_args={"timeout": 60}))


@contextmanager
def postgres(request):
    schema = f"marks_{uuid.uuid4().hex}"
    engine = create_engine("postgresql+psycopg://postgres@127.0.0.1:5432/postgres")
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE SCHEMA {schema}")
    own = {"options": f"-c search_path={schema}"}
    yield from database(create_engine(engine.url, connect_args=own, isolation_level="SERIALIZABLE"))
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP SCHEMA {schema} CASCADE")
    engine.dispose()


@contextmanager
def mariadb(request):
    name = f"marks_{uuid.uuid4().hex}"
    engine = create_engine("mysql+pymysql://root@127.0.0.1:3306/")
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    yield from database(create_engine(engine.url.set(database=name)))
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name}")
    engine.dispose()


def database(engine):
    with engine.begin() as connection:
        create_gates(connection)
    yield SqlMarks(engine)
    engine.dispose()


STORES = {
    "memory": lambda _: nullcontext(MemoryMarks()),
    "redis": lambda request: nullcontext(RedisMarks(request.getfixturevalue("client"))),
    "decoding": decoding,
    "sqlite": sqlite,
    "postgres": postgres,
    "mariadb": mariadb,
}


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.needs(name)) if name in {"postgres", "mariadb"} else name
        for name in STORES
    ]
)
def marks(request, client):
    with STORES[request.param](request) as store:
        yield store


@pytest.mark.parametrize("scope", AWKWARD)
def test_the_first_token_sets_the_mark_and_a_higher_one_raises_it(marks, scope):
    assert marks.raise_mark(scope, Mark(5, "o1")) == Mark(5, "o1")
    assert marks.raise_mark(scope, Mark(6, "o2")) == Mark(6, "o2")
    assert marks.raise_mark(scope, Mark(5, "o1")) == Mark(6, "o2")


def test_a_lower_token_leaves_the_mark(marks):
    marks.raise_mark("s", Mark(2**53 - 1, "o1"))

    assert marks.raise_mark("s", Mark(2**53 - 2, "o2")) == Mark(2**53 - 1, "o1")


def test_an_equal_token_of_another_owner_leaves_the_mark(marks):
    marks.raise_mark("s", Mark(5, "o1"))

    assert marks.raise_mark("s", Mark(5, "o2")) == Mark(5, "o1")
    assert marks.raise_mark("s", Mark(5, "o1")) == Mark(5, "o1")


def test_an_unknown_owner_passes_at_an_equal_token_and_makes_nobody_forgotten(marks):
    marks.raise_mark("s", Mark(5, "o1"))
    assert not Mark(5).is_stale_after(marks.raise_mark("s", Mark(5)))

    assert Mark(5, "o2").is_stale_after(marks.raise_mark("s", Mark(5, "o2")))
    assert not Mark(5, "o1").is_stale_after(marks.raise_mark("s", Mark(5, "o1")))


def test_a_known_owner_passes_where_the_first_was_unknown(marks):
    marks.raise_mark("s", Mark(5))

    assert not Mark(5, "o1").is_stale_after(marks.raise_mark("s", Mark(5, "o1")))
    assert not Mark(5).is_stale_after(marks.raise_mark("s", Mark(5)))


def test_scopes_are_apart(marks):
    marks.raise_mark("s", Mark(9))

    assert marks.raise_mark("s:1", Mark(5)) == Mark(5)


@pytest.fixture
def hasty_switches():
    """Threads change places between nearly any two lines."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def test_twenty_at_once_see_a_mark_that_never_goes_down_and_end_at_the_highest(marks, rounds, hasty_switches):
    barrier = threading.Barrier(20)

    def raise_marks(number):
        chance = random.Random(number)
        given = [Mark(chance.randrange(1, 10**6), str(number)) for _ in range(rounds)]
        barrier.wait(timeout=30)
        return given, [marks.raise_mark("s", mark) for mark in given]

    with ThreadPoolExecutor(20) as senders:
        done = [run.result(timeout=90) for run in [senders.submit(raise_marks, n) for n in range(20)]]

    for given, answers in done:
        assert [mark.token for mark in answers] == sorted(mark.token for mark in answers)
        assert all(answer.token >= mark.token for mark, answer in zip(given, answers, strict=True))
    highest = max(mark.token for given, _ in done for mark in given)
    assert marks.raise_mark("s", Mark(1)).token == highest


def test_marks_in_memory_are_dropped_when_their_time_is_over_and_not_while_they_are_used():
    clock = FakeClock(0.0)
    marks = MemoryMarks(retention=10, clock=clock)
    marks.raise_mark("used", Mark(5))
    marks.raise_mark("idle", Mark(5))
    clock.advance(9)
    marks.raise_mark("used", Mark(4))
    clock.advance(9)

    assert marks.raise_mark("used", Mark(4)) == Mark(5)
    assert len(marks) == 1
    assert marks.raise_mark("idle", Mark(4)) == Mark(4)


def test_marks_in_redis_expire_unless_they_are_kept_for_good(client):
    RedisMarks(client, prefix="p", retention=1000).raise_mark("s", Mark(5))
    assert 990 < client.ttl("p:mark:s") <= 1000
    RedisMarks(client, prefix="p", retention=None).raise_mark("s", Mark(6))

    assert client.ttl("p:mark:s") == -1


def test_a_mark_in_redis_that_cannot_be_read_is_an_error(client):
    client.hset("fence:mark:s", "token", "junk")
    with pytest.raises(redis.ResponseError, match="no fencing token"):
        RedisMarks(client).raise_mark("s", Mark(5))


def test_a_client_that_has_to_be_awaited_is_refused():
    with pytest.raises(ConfigError, match=r"redis\.Redis"):
        RedisMarks(redis.asyncio.Redis())


@pytest.mark.parametrize("failures", [1, 4, 5])
def test_a_database_that_was_busy_is_asked_again_and_not_for_ever(tmp_path, failures):
    """Another connection has the write lock, and lets go of it after so many refusals."""
    engine = create_engine(f"sqlite:///{tmp_path}/marks.db", connect_args={"timeout": 0})
    with engine.begin() as connection:
        create_gates(connection)
    other = sqlite3.connect(tmp_path / "marks.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    refused = []

    def let_go(context):
        refused.append(context.original_exception)
        if len(refused) == failures:
            other.execute("ROLLBACK")

    marks = SqlMarks(engine)
    event.listen(engine, "handle_error", let_go)
    if failures < 5:
        assert marks.raise_mark("s", Mark(5)) == Mark(5)
    else:
        with pytest.raises(OperationalError, match="locked"):
            marks.raise_mark("s", Mark(5))

    assert len(refused) == failures
    other.close()
    engine.dispose()
