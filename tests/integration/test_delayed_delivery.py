"""RabbitMQ's delays for quorum queues are made of dead-lettering; they must not make another delivery of a message."""

from __future__ import annotations

from bench.waiting import wait_until

from celery_fence.task.delivery import notes_of


def test_a_message_that_was_delayed_on_a_quorum_queue_is_still_the_same_delivery(make_bench):
    bench = make_bench("quorum")
    bench.worker(concurrency=1).stop()  # it has declared the queues of the delays
    bench.app.tasks["retry"].apply_async((bench.key(),), countdown=2)
    with bench.app.connection_for_read() as connection:
        queue = bench.app.amqp.queues[bench.app.conf.task_default_queue].bind(connection.default_channel)
        message = wait_until(lambda: queue.get(no_ack=True), what="the delay is over")

    assert message.headers["x-death"], "it went through a queue of the delays"
    assert notes_of(message).delivery == message.headers["fence"]["delivery"]
