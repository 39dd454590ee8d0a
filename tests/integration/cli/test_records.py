"""`fence records` on a real store, in this process."""

from __future__ import annotations

import inspect
import json
import logging
import uuid
from datetime import datetime

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_fence.cli import fence
from celery_fence.locking.store import Claim, Ending, Facts, Granted

JSON = b"application/json;utf-8\n"


APART = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
"""The two outputs as a shell has them; click does so by itself from 8.2 on."""


@pytest.fixture
def records(server):
    """The command on a URL alone; *how* is given to click's runner."""

    def invoke(*words, **how):
        context = CLIContext(app=None, no_color=True, workdir=None)
        # Whoever runs the tests may have a screen of some width: a list fits into it.
        runner = CliRunner(env={"COLUMNS": None}, **APART)
        return runner.invoke(fence, ["--url", server.url, "records", *words], obj=context, **how)

    return invoke


def claim(store, record="payment:7", key="tenant:7"):
    facts = Facts("shop.pay", f"id of {record}", host="web-1", pid=4711)
    wish = Claim(key, uuid.uuid4().hex, 60.0, facts, record=record)
    granted = store.acquire(wish)
    assert isinstance(granted, Granted)
    return wish, granted.token


def do(store, record="payment:7", value=JSON + b'{"charged": 5}', **where):
    wish, token = claim(store, record, **where)
    store.release(wish, token, Ending("returned", result=value))
    return wish, token


def document(done):
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_no_records_is_a_sentence_and_no_error(records, store):
    done = records("list")

    assert done.exit_code == 0
    assert done.stdout.startswith("No record in redis://")
    assert document(records("list", "--json"))["records"] == []


def test_records_as_a_document_have_every_fact(records, store, server):
    wish, token = do(store)
    claim(store, "payment:8", "tenant:8")
    found = document(records("list", "--json"))
    done, claimed = found["records"]

    assert (found["store"], found["prefix"]) == (server.url, "fence")
    assert (done["record"], done["state"], done["key"], done["owner"], done["token"]) == (
        "payment:7",
        "done",
        "tenant:7",
        wish.owner,
        token,
    )
    assert (done["task"], done["task_id"], done["host"], done["pid"]) == (
        "shop.pay",
        "id of payment:7",
        "web-1",
        4711,
    )
    assert done["result_bytes"] == len(JSON) + len('{"charged": 5}')
    assert datetime.fromisoformat(done["claimed"]) <= datetime.fromisoformat(done["done"])
    assert 86_000 < done["kept_for"] <= 86_400
    assert (claimed["state"], claimed["done"], claimed["result_bytes"]) == ("claimed", None, None)


def test_a_list_has_a_line_for_each(records, store):
    do(store)
    claim(store, "payment:8", "tenant:8")
    lines = records("list").stdout.splitlines()

    assert [line.split()[0] for line in lines] == ["RECORD", "payment:7", "payment:8"]
    assert [line.split()[1] for line in lines[1:]] == ["done", "claimed"]


@pytest.mark.parametrize(
    ("text", "found"), [("payment", ["payment:7"]), ("tenant:8", ["order:8"]), ("zz", [])]
)
def test_records_can_be_searched(records, store, text, found):
    do(store)
    do(store, "order:8", key="tenant:8")

    listed = document(records("list", "--match", text, "--json"))["records"]
    assert [each["record"] for each in listed] == found


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (JSON + b'{"charged": 5}', '{"charged": 5}'),
        (b"application/x-python-serialize;binary\n\x80\xff", "2 bytes of application/x-python-serialize"),
        (None, None),
    ],
)
def test_one_record_is_shown_with_its_result(records, store, value, shown):
    do(store, value=value)

    assert document(records("show", "payment:7", "--json"))["result"] == shown
    lines = records("show", "payment:7").stdout
    assert f"result    {shown or 'not kept'}" in lines
    assert "by        shop.pay[id of payment:7]" in lines


def test_a_claim_is_shown_as_one(records, store):
    claim(store)
    lines = records("show", "payment:7").stdout

    assert "state     claimed" in lines
    assert "result" not in lines


def test_what_a_record_contains_can_t_steer_a_terminal(records, store):
    do(store, "pay\x1b[2J", value=JSON + b'"\x1b[2J"')

    assert "\x1b" not in records("list").stdout + records("show", "pay\x1b[2J").stdout


@pytest.mark.parametrize("words", [("show", "payment:9"), ("delete", "payment:9", "--yes")])
def test_a_record_that_isn_t_there_is_an_error_that_says_where_to_look(records, store, words):
    done = records(*words)

    assert done.exit_code == 1
    assert "See: fence records list" in done.stderr


def test_nothing_is_deleted_without_a_yes(records, store):
    do(store)
    done = records("delete", "payment:7", input="n\n")

    assert done.exit_code == 1
    assert "shop.pay[id of payment:7]" in done.stderr
    assert store.record("payment:7") is not None


@pytest.mark.parametrize(("words", "how"), [(("--yes",), {}), ((), {"input": "y\n"})])
def test_a_deletion_says_so_in_the_log_and_the_work_may_be_done_again(records, store, caplog, words, how):
    do(store)
    done = records("delete", "payment:7", *words, **how)

    assert done.exit_code == 0
    assert "may be done again" in done.stdout
    assert store.record("payment:7") is None
    (line,) = [each for each in caplog.records if each.name == "celery_fence.cli.records"]
    assert (line.levelno, "'payment:7'" in line.getMessage()) == (logging.WARNING, True)


def test_a_deletion_as_a_document_says_what_it_was(records, store):
    do(store)

    found = document(records("delete", "payment:7", "--yes", "--json"))

    assert (found["deleted"], found["record"]["state"]) == (True, "done")


def test_a_store_that_keeps_no_records_says_so(records, monkeypatch):
    monkeypatch.setattr("celery_fence.cli.records.place", lambda ctx: Place())
    done = records("list")

    assert done.exit_code == 1
    assert "keeps no idempotency records" in done.stderr


class Place:
    """One with a store that has only leases."""

    class store:  # noqa: N801 - it stands for an attribute
        description = "sql://somewhere"
