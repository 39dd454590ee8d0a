"""`fence release` fences off the holder that was shown, after a yes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import redis

from celery_fence.locking.store import Gone, Renewal
from tests.integration.cli.commands import ROOT, document, take


def test_a_release_shows_the_holder_and_changes_nothing_without_a_yes(fence, store):
    claim, _ = take(store, host="web-1")

    for answer in ("n\n", ""):
        done = fence("release", claim.key, answer=answer)
        assert done.returncode == 1
        assert "billing.sync[0d3c]" in done.stderr
        assert "web-1" in done.stderr
        assert store.holder(claim.key).owner == claim.owner


def test_a_release_fences_the_old_holder_off_and_writes_who_did_it(fence, store):
    claim, granted = take(store)
    done = fence("release", claim.key, answer="y\n")

    assert done.returncode == 0, done.stderr
    assert "is fenced off" in done.stdout
    for told in (done.stderr, done.stdout):  # before the question, and after
        assert "Its message is sent again" in told
    assert f"force-released {claim.key!r}" in done.stderr
    assert f"owner {claim.owner}, token {granted.token}" in done.stderr
    (answer,) = store.renew([Renewal(claim, granted.token, granted.since)])
    assert isinstance(answer, Gone)
    assert answer.reason == "force_released"
    assert take(store)[1].token > granted.token


def test_a_script_releases_without_a_question(fence, store):
    claim, granted = take(store)
    found = document(fence("release", claim.key, "--yes", "--json"))

    assert (found["released"], found["outcome"], found["lease"]["token"]) == (
        True,
        "force_released",
        granted.token,
    )
    assert store.holder(claim.key) is None


def test_a_free_key_is_left_alone(fence, store):
    found = document(fence("release", "nothing", "--yes", "--json"))

    assert (found["released"], found["outcome"]) == (False, "already_free")
    assert store.history("nothing").token == 0


def test_a_release_of_an_owner_that_has_gone_leaves_its_successor_alone(fence, store):
    old, granted = take(store)
    store.release(old, granted.token)
    new, _ = take(store, task_name="billing.other")
    done = fence("release", old.key, "--owner", old.owner, "--yes", "--json")

    assert done.returncode == 1
    assert json.loads(done.stdout)["outcome"] == "held_by_another"
    assert json.loads(done.stdout)["lease"]["owner"] == new.owner
    assert "belongs to another owner by now, billing.other[0d3c]" in done.stderr
    assert store.holder(old.key).owner == new.owner


def test_an_owner_whose_lease_has_vanished_is_fenced_off_too(fence, store, server):
    claim, granted = take(store)
    with redis.Redis.from_url(server.url) as client:
        client.delete(store._names.of(claim.key.encode())[0])
    done = fence("release", claim.key, "--owner", claim.owner, "--yes")

    assert done.returncode == 0, done.stderr
    assert isinstance(store.renew([Renewal(claim, granted.token, granted.since)])[0], Gone)


def test_a_new_holder_between_the_question_and_the_answer_is_not_touched(server, store):
    old, granted = take(store)
    command = [sys.executable, "-m", "celery_fence.cli", "--url", server.url, "release", old.key]
    with subprocess.Popen(
        command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as asking:
        shown = ""
        while "[y/N]" not in shown:
            shown += asking.stderr.read(1) or pytest.fail(f"it ended without a question: {shown}")
        store.release(old, granted.token)
        new, _ = take(store)
        _, said = asking.communicate("y\n", timeout=30)

    assert asking.returncode == 1
    assert "Nothing was released" in said
    assert store.holder(old.key).owner == new.owner
