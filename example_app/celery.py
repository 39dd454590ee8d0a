"""The Celery app of the billing service: ``celery -A example_app worker``."""

from __future__ import annotations

from celery import Celery

from example_app.config import Config

config = Config.from_environment()

app = Celery("example_app", broker=config.broker_url, include=["example_app.tasks"])
app.conf.update(
    fence_url=config.fence_url,
    # A killed worker's message comes back instead of being lost.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    # One message at a time for each pool process, so that nobody sits on work.
    worker_prefetch_multiplier=1,
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
)
