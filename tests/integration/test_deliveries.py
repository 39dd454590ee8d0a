"""
Copies of a message whose body has ended, or still runs: each body runs once for each message that was sent.

Redis delivers a message again after its visibility timeout, here after 2 s; every body
holds its key until copies of its message have come.
"""

from __future__ import annotations

import os
import signal
import subprocess
from urllib.parse import urlsplit

import pytest
from bench.boundaries import add_tasks
from bench.deliveries import markers, publish_raw, questions_asked, wait_until_drained
from bench.events import watching
from bench.waiting import wait_until
from bench.world import Bench

from celery_fence import is_skipped
from celery_fence.task.dead_letters import letters
from celery_fence.testing.proxy import Proxy

TTL = 1.2
EAGER_BROKER = {"visibility_timeout": 2, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
CONF = {
    "fence_ttl": TTL,
    "broker_transport_options": EAGER_BROKER,
    "task_reject_on_worker_lost": True,
    "task_track_started": True,
    "worker_lost_wait": 0.3,
}


def new_bench(make_bench, kind="redis", **conf) -> Bench:
    bench = make_bench(kind, **{**CONF, **conf})
    add_tasks(bench.app)
    return bench


def start_worker(bench, pool, concurrency) -> None:
    """A worker; without an event loop it never looks for messages to deliver again, so another one does that."""
    bench.launch(app="bench.boundaries", pool=pool, concurrency=concurrency)
    if pool != "prefork":
        bench.launch(app="bench.boundaries", concurrency=1, options=["-Q", f"{bench.queue}.nothing"])
    for worker in bench.workers:
        worker.await_ready()


# --- bodies run = messages sent ------------------------------------------------------------------

ENDINGS = {
    "returned": ("survivor", {"then": "return"}, 1, "SUCCESS"),
    "returned a large value": ("survivor", {"then": "large"}, 1, "SUCCESS"),
    "returned what can't be serialised": ("survivor", {"then": "unserialisable"}, 1, "FAILURE"),
    "failed": ("survivor", {"then": "raise"}, 1, "FAILURE"),
    "failed, and isn't acknowledged on failure": ("unacked", {"then": "raise"}, 1, "FAILURE"),
    "retried": ("survivor", {"then": "retry", "times": 1}, 2, "SUCCESS"),
    "ignored": ("survivor", {"then": "ignore"}, 1, None),
    "rejected": ("survivor", {"then": "reject"}, 1, None),
    "replaced": ("survivor", {"then": "replace"}, 1, "SUCCESS"),
    "returned, sent by another client": ("raw", {"then": "return"}, 1, "SUCCESS"),
    "failed, sent by another client": ("raw", {"then": "raise"}, 1, "FAILURE"),
}
SCENES = {
    "prefork": ("prefork", {}),
    "gevent": ("gevent", {}),
    "remembering no results": ("prefork", {"fence_remember_results": False}),
}


class Scene:
    """Everything is sent at once, and every body holds until its message has been delivered three times."""

    def __init__(self, bench: Bench, pool: str) -> None:
        self.bench = bench
        self.keys = {name: bench.key() for name in ENDINGS}
        self.then = {name: bench.key("then") for name in ENDINGS}
        gate = bench.gate()
        start_worker(bench, pool, concurrency=len(ENDINGS) + 4)
        with watching(bench.app) as monitor:
            self.results = {name: self._send(name, gate.path.name) for name in ENDINGS}
            wait_until(
                lambda: all(len(monitor.of(r.id, "task-received")) >= 3 for r in self.results.values())
            )
            gate.open()
            wait_until_drained(bench)

    def _send(self, name, gate):
        task, plan, *_ = ENDINGS[name]
        plan = {"gate": gate, "value": "v", "replaced_by": self.then[name], **plan}
        if task == "raw":
            return publish_raw(self.bench, "survivor", self.keys[name], plan)
        return self.bench.send(task, self.keys[name], plan)


@pytest.fixture(scope="module", params=SCENES)
def scene(request, make_bench) -> Scene:
    pool, conf = SCENES[request.param]
    return Scene(new_bench(make_bench, **conf), pool)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_run_longer_than_the_visibility_timeout_runs_once_however_it_ends(scene, ending):
    _, plan, bodies, state = ENDINGS[ending]
    key, result = scene.keys[ending], scene.results[ending]

    assert len(scene.bench.ledger.starts(key)) == bodies
    assert scene.bench.ledger.overlaps(key) == []
    if state is not None:
        assert result.state == state
    if state == "SUCCESS":
        assert result.get(timeout=5) == ("v" * 9000 if plan["then"] == "large" else "v")
    if plan["then"] == "replace":
        assert len(scene.bench.ledger.starts(scene.then[ending])) >= 1


def test_everything_that_is_remembered_expires_and_holds_no_value(scene):
    client = scene.bench.lease_client
    wait_until(lambda: all(client.hget(name, "noted") for name in client.scan_iter("*:done:*")))

    assert all(client.ttl(name) > 0 for name in client.scan_iter())
    assert [name for name in client.scan_iter("*:done:*") if client.hexists(name, "value")] == []


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_an_early_acknowledged_message_that_waits_beyond_the_visibility_timeout_runs_once(make_bench, pool):
    bench = new_bench(make_bench)
    start_worker(bench, pool, concurrency=4)
    key = bench.key()
    with watching(bench.app) as monitor:
        result = bench.send("early_job", key, {"value": "v"}, countdown=6)
        assert result.get(timeout=30) == "v"
        wait_until_drained(bench)
        received = len(monitor.of(result.id, "task-received"))

    assert received >= 2
    assert len(bench.ledger.starts(key)) == 1


# --- what is a delivery ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bench(make_bench) -> Bench:
    bench = new_bench(make_bench)
    bench.worker(app="bench.boundaries", concurrency=4)
    return bench


def test_two_sends_with_the_same_task_id_are_two_runs(bench):
    key = bench.key()
    result = bench.send("survivor", key, {"value": "first"})
    assert result.get(timeout=20) == "first"
    bench.send("survivor", key, {"value": "second"}, task_id=result.id)
    wait_until(lambda: len(bench.ledger.ends(key)) == 2, what="the second run")

    assert len({fact["token"] for fact in bench.ledger.starts(key)}) == 2


# --- terminal decisions on a miss ------------------------------------------------------------------

DECISIONS = ("skip", "dead_letter", "raise")


def decided(policy, result):
    """Whether the message shows the outcome of its policy."""
    match policy:
        case "skip":
            return result.state == "SUCCESS" and is_skipped(result.result)
        case "dead_letter":
            return result.state == "FAILURE" and type(result.result).__name__ == "DeadLettered"
        case _:
            return result.state == "FAILURE" and type(result.result).__name__ == "Contended"


def letters_of(bench, result):
    return [letter for letter in letters(bench.app) if letter.id == result.id]


@pytest.mark.parametrize("policy", DECISIONS)
def test_a_decision_that_a_killed_process_could_not_carry_out_is_carried_out_by_the_copy(bench, policy):
    """Although the key is free by then: the message was refused, so its body must not run."""
    key = bench.key()
    bench.occupy(key)
    result = bench.send(policy, key, {"stops_at": "asked", "victim": "child"})
    wait_until(lambda: bench.ledger.facts("boundary", key=key))
    bench.vacate(key)

    wait_until(lambda: decided(policy, result), what=f"{policy} is carried out")
    wait_until_drained(bench)
    assert bench.ledger.starts(key) == []
    assert len(letters_of(bench, result)) == (policy == "dead_letter")


@pytest.mark.parametrize("policy", DECISIONS)
def test_the_copy_of_a_message_whose_decision_is_noted_ends_silently(bench, policy):
    key = bench.key()
    bench.occupy(key)
    with watching(bench.app) as monitor:
        result = bench.send(policy, key, {"stops_at": "noted", "victim": "child"})
        wait_until(lambda: bench.ledger.facts("boundary", key=key))
        bench.vacate(key)
        wait_until_drained(bench)
        told = monitor.kinds(result.id)

    assert decided(policy, result)
    assert bench.ledger.starts(key) == []
    assert len(letters_of(bench, result)) == (policy == "dead_letter")
    assert bench.misses(key) == 1, told


def test_a_step_that_a_skip_continues_with_runs_once_although_the_skip_is_carried_out_twice(bench):
    key, then = bench.key(), bench.key("then")
    bench.occupy(key)
    plan = {"stops_at": "published:join_fenced", "victim": "child"}
    tasks = bench.app.tasks
    final = (tasks["skip_continue"].s(key, plan) | tasks["join_fenced"].s(then)).apply_async()

    assert is_skipped(final.get(timeout=30))
    wait_until(lambda: bench.misses(key) == 2, what="the copy has decided again")
    wait_until_drained(bench)
    assert len(bench.ledger.facts("join", key=then)) == 1


# --- what it costs -----------------------------------------------------------------------------------


def test_a_plain_value_costs_two_questions_a_large_one_three(make_bench):
    bench = new_bench(make_bench, fence_ttl=30.0)  # so that no run, however slow, is renewed
    bench.worker(app="bench.boundaries", concurrency=2)
    with questions_asked(bench) as plain:
        run_many(bench, {"then": "return", "value": "v"})
    with questions_asked(bench) as large:
        run_many(bench, {"then": "large", "value": "v"})

    assert (plain["acquire"], plain["release"], plain["renew"]) == (20, 20, 0)
    assert plain["note"] <= 10, "notes travel in batches"
    assert (large["acquire"], large["release"], large["note"]) == (20, 20, 20)


def test_without_remembered_results_each_needed_value_costs_one_question_more(make_bench):
    bench = new_bench(make_bench, fence_remember_results=False)
    bench.worker(app="bench.boundaries", concurrency=2)
    with questions_asked(bench) as asked:
        run_many(bench, {"value": "v"})

    assert (asked["acquire"], asked["release"], asked["note"]) == (20, 20, 20)


def run_many(bench, plan):
    """Twenty runs on keys of their own, until all are noted."""
    keys = [bench.key() for _ in range(20)]
    for result in [bench.send("survivor", key, plan) for key in keys]:
        result.get(timeout=20)
    for key in keys:
        wait_until(lambda key=key: is_noted(bench, key), timeout=5, what="noted")


# --- notes ---------------------------------------------------------------------------------------------


def is_noted(bench, key):
    return any(marker.get("noted") for marker in markers(bench, key))


def test_an_epilogue_is_noted_within_a_second_and_the_value_dropped(bench):
    key = bench.key()
    bench.send("survivor", key, {"value": "v"}).get(timeout=20)
    wait_until(lambda: is_noted(bench, key), timeout=1.5, what="noted")

    (marker,) = markers(bench, key)
    assert (marker["how"], marker.get("value")) == ("returned", None)


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_a_worker_that_ends_has_written_its_notes(make_bench, pool):
    bench = new_bench(make_bench)
    worker = bench.worker(app="bench.boundaries", pool=pool, concurrency=1 if pool == "solo" else 2)
    keys = [bench.key() for _ in range(5)]
    results = [bench.send("survivor", key, {"value": "v"}) for key in keys]
    worker_is_done = [result.get(timeout=20) for result in results]
    worker.kill(signal.SIGTERM)
    worker.await_exit()

    assert worker_is_done == ["v"] * 5
    assert [key for key in keys if not is_noted(bench, key)] == []


def test_a_child_that_ends_after_one_task_has_written_its_note(make_bench):
    bench = new_bench(make_bench)
    bench.worker(app="bench.boundaries", concurrency=1, options=["--max-tasks-per-child=1"])
    keys = [bench.key() for _ in range(3)]
    for key in keys:
        bench.send("survivor", key, {"value": "v"}).get(timeout=20)

    assert len({bench.ledger.starts(key)[0]["pid"] for key in keys}) == 3
    wait_until(lambda: all(is_noted(bench, key) for key in keys), timeout=3, what="all are noted")


def test_what_could_not_be_noted_while_the_store_was_down_is_noted_later(make_bench):
    bench = new_bench(make_bench, fence_ttl=8.0, broker_transport_options={})
    bench.worker(app="bench.boundaries", concurrency=1)
    key = bench.key()
    result, gate = bench.hold(key, value="v")
    bench.leases.pause()
    try:
        gate.open()
        assert result.get(timeout=20) == "v"
        wait_until(
            lambda: "1 run couldn't be noted as complete yet" in bench.workers[0].log, what="the note fails"
        )
    finally:
        bench.leases.resume()

    wait_until(lambda: is_noted(bench, key), timeout=15, what="noted later")


# --- lost runs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("then", ["return", "first_raises"])
@pytest.mark.parametrize("task", ["survivor", "flagged"])
def test_a_lost_run_whose_copy_has_finished_ends_silently(bench, task, then):
    key, gate = bench.key(), bench.gate()
    plan = {"gate": gate.path.name, "once": True, "then": then, "value": "v"}
    result = bench.send(task, key, plan)
    wait_until(lambda: bench.ledger.starts(key))
    frozen = bench.ledger.starts(key)[0]["pid"]
    os.kill(frozen, signal.SIGSTOP)
    try:
        assert result.get(timeout=30) == "v"
        written = result.date_done
        gate.open()
    finally:
        os.kill(frozen, signal.SIGCONT)
    wait_until(lambda: bench.ledger.facts("task_postrun", task_id=result.id, pid=frozen))
    wait_until_drained(bench)

    assert (result.state, result.get(), result.date_done) == ("SUCCESS", "v", written)
    assert bench.ledger.facts("task_failure", task_id=result.id, pid=frozen) == []
    assert len(bench.ledger.starts(key)) == 2


@pytest.mark.parametrize("task", ["survivor", "flagged"])
def test_a_lost_run_that_ends_while_its_copy_works_takes_the_copys_message_from_no_one(bench, task):
    """On Redis both deliveries share one tag: acknowledging the late run also acknowledges its copy."""
    key, late = bench.key(), bench.gate()
    plan = {"gate": late.path.name, "then": "return", "value": "v"}
    result = bench.send(task, key, plan)
    wait_until(lambda: bench.ledger.starts(key))
    frozen = bench.ledger.starts(key)[0]["pid"]
    os.kill(frozen, signal.SIGSTOP)
    try:
        wait_until(lambda: len(bench.ledger.starts(key)) == 2, what="the copy took over")
        copys = bench.ledger.starts(key)[1]["pid"]
        os.kill(copys, signal.SIGSTOP)
        late.open()
    finally:
        os.kill(frozen, signal.SIGCONT)
    wait_until(lambda: bench.ledger.facts("task_postrun", task_id=result.id, pid=frozen))
    os.kill(copys, signal.SIGKILL)

    assert result.get(timeout=40) == "v"
    assert len(bench.ledger.starts(key)) == 3


# --- RabbitMQ ------------------------------------------------------------------------------------------------


def drop_every_connection(bench, proxy):
    proxy.reset()


def have_the_broker_close_every_connection(bench, proxy):
    """As it does with a consumer that hasn't acknowledged in time: the channel's end is the redelivery."""
    done = subprocess.run(
        [
            "rabbitmqctl",
            "-q",
            "close_all_connections",
            "--vhost",
            urlsplit(bench.broker.url).path[1:],
            "a test",
        ],
        check=False,
        timeout=60,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("cancelled", [False, True], ids=["runs go on", "runs are cancelled"])
@pytest.mark.parametrize("loss", [drop_every_connection, have_the_broker_close_every_connection])
def test_after_a_lost_connection_one_body_runs_at_a_time_and_its_result_counts(
    make_bench, rabbit, loss, cancelled
):
    if loss is have_the_broker_close_every_connection and not rabbit.rpartition("/")[2]:
        pytest.skip("RabbitMQ has no virtual host of our own: rabbitmqctl may not be used")
    bench = new_bench(
        make_bench,
        "classic",
        broker_transport_options={},
        worker_cancel_long_running_tasks_on_connection_loss=cancelled,
    )
    where = urlsplit(bench.broker.url)
    with Proxy(where.hostname, where.port or 5672) as proxy:
        through = where._replace(
            netloc=f"{where.username}:{where.password}@{proxy.host}:{proxy.port}"
        ).geturl()
        first = bench.worker(app="bench.boundaries", concurrency=2, conf={"broker_url": through})
        key = bench.key()
        result, gate = bench.hold(key, task="survivor", value="v")
        second = bench.worker(app="bench.boundaries", concurrency=2)
        loss(bench, proxy)
        wait_until(lambda: "onnection to broker lost" in first.log, what="the connection is lost")
        received = f"[{result.id}] received"
        wait_until(lambda: (first.log + second.log).count(received) > 1, what="a copy came, to either worker")
        wait_until(
            lambda: len(bench.ledger.starts(key)) == 1 + cancelled, what="the cancelled run's copy runs"
        )
        gate.open()

        assert result.get(timeout=40) == "v"
        wait_until(lambda: bench.holder(key) is None)
    assert len(bench.ledger.starts(key)) == 1 + cancelled
    assert bench.ledger.overlaps(key) == []
