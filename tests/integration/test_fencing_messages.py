"""The token in messages: what a fenced task sends says whose it is, and a consumer drops what is stale."""

from __future__ import annotations

import kombu
import pytest
from bench.waiting import wait_until
from celery import chain, chord, group

from celery_fence import FencedTask, hold
from celery_fence.fencing.streams import MemoryMarks, Stamp, TokenGate


@pytest.fixture(scope="module", params=["redis", pytest.param("quorum", marks=pytest.mark.needs("rabbitmq"))])
def bench(request, make_bench):
    bench = make_bench(request.param)
    bench.worker(concurrency=2)
    return bench


def stamps(bench, key):
    """What the bodies on *key* saw in their request's headers."""
    return [Stamp.read(start["headers"]) for start in bench.ledger.starts(key)]


def stamp_of(lease):
    return Stamp(lease.key, lease.token, lease.owner)


def test_a_body_sees_whose_message_it_got(bench):
    key = bench.key()
    with hold("sender:<key>", {"key": key}, app=bench.app) as lease:
        bench.send("retry", key, headers=lease.message_headers()).get(timeout=30)
    bench.send("retry", key).get(timeout=30)

    assert stamps(bench, key) == [stamp_of(lease), None]


def test_the_stamp_survives_the_tasks_own_retry(bench):
    key = bench.key()
    with hold("sender:<key>", {"key": key}, app=bench.app) as lease:
        plan = {"then": "retry", "times": 1}
        bench.send("retry", key, plan, headers=lease.message_headers()).get(timeout=30)

    assert stamps(bench, key) == [stamp_of(lease)] * 2


def test_the_stamp_survives_a_miss(bench):
    key = bench.key()
    bench.occupy(key)
    with hold("sender:<key>", {"key": key}, app=bench.app) as lease:
        result = bench.send("retry", key, headers=lease.message_headers())
        wait_until(lambda: result.state == "RETRY")
        bench.vacate(key)
        result.get(timeout=30)

    assert stamps(bench, key) == [stamp_of(lease)]


def test_every_part_of_a_group_and_of_a_chord_carries_it(bench):
    keys = [bench.key() for _ in range(5)]
    task = bench.app.tasks["retry"]
    with hold("sender:<key>", {"key": keys[0]}, app=bench.app) as lease:
        headers = lease.message_headers()
        done = group(task.si(key) for key in keys[:2]).apply_async(headers=headers)
        joined = chord([task.si(key) for key in keys[2:4]], task.si(keys[4])).apply_async(headers=headers)
        done.get(timeout=30)
        joined.get(timeout=30)

    assert [stamps(bench, key) for key in keys] == [[stamp_of(lease)]] * 5


def test_each_step_of_a_chain_that_was_given_it_carries_it(bench):
    """Celery hands the headers of a chain's `apply_async` to its first step only."""
    keys = [bench.key() for _ in range(3)]
    task = bench.app.tasks["retry"]
    with hold("sender:<key>", {"key": keys[0]}, app=bench.app) as lease:
        headers = lease.message_headers()
        steps = chain(task.si(keys[0]), task.si(keys[1]).set(headers=headers), task.si(keys[2]))
        steps.apply_async(headers=headers).get(timeout=30)

    assert [stamps(bench, key) for key in keys] == [[stamp_of(lease)], [stamp_of(lease)], [None]]


def test_a_kombu_consumer_drops_what_a_straggler_sent(bench):
    """Two holders of one key; the first one's last message is the last to arrive."""
    gate, taken, dropped = TokenGate(MemoryMarks()), [], []
    queue = kombu.Queue(bench.key("events"), durable=False, auto_delete=True)

    def take(body, message):
        stamp = Stamp.read(message.headers)
        (taken if gate.admits(stamp, what=body["type"]) else dropped).append(body["type"])
        message.ack()

    with hold("sender:events", app=bench.app) as straggler:
        pass
    with hold("sender:events", app=bench.app) as successor:
        pass
    with bench.app.connection_for_write() as connection:
        producer = connection.Producer()
        with connection.Consumer(queue, callbacks=[take]):
            for name, lease in (("first", straggler), ("second", successor), ("late", straggler)):
                producer.publish(
                    {"type": name}, routing_key=queue.name, exchange="", headers=lease.message_headers()
                )
            while len(taken) + len(dropped) < 3:
                drain(connection)

    assert (taken, dropped) == (["first", "second"], ["late"])


def drain(connection):
    try:
        connection.drain_events(timeout=30)
    except TimeoutError:
        pytest.fail("the message didn't arrive")


def test_a_fenced_task_stamps_what_it_sends_with_the_lease_of_its_own_run(bench):
    """In this process: who sends is a fenced task, directly called."""
    key, other = bench.key(), bench.key()
    child = bench.app.tasks["retry"]
    leases = []

    @bench.app.task(base=FencedTask, bind=True, lock_key="sender:<key>", name=key, shared=False)
    def sender(self, key):
        leases.append(self.lease)
        return child.apply_async((key, {}), headers=self.lease.message_headers())

    sender(key).get(timeout=30)
    sender(other).get(timeout=30)

    assert [stamps(bench, each) for each in (key, other)] == [[stamp_of(lease)] for lease in leases]
