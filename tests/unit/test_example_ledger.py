"""The example's ledger: what its gate and its guard refuse, one run after another, without the demo around it."""

from __future__ import annotations

from contextvars import copy_context

import pytest
from celery import Celery

from celery_fence import StaleToken, hold
from celery_fence.fencing.sqlalchemy import RowChanged
from example_app.ledger import OPENING_CENTS, Ledger, Run

TENANT = INVOICE = 2


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture
def books(url):
    ledger = Ledger(url)
    ledger.open(3, slow_seconds=1)
    yield ledger
    ledger.close()


@pytest.fixture
def frozen():
    """Where an older and then a newer run works on the tenant: `frozen[0].run(...)` is done by the older one."""
    app = Celery(set_as_current=False)
    app.conf.fence_url = "memory://"
    contexts = []
    for _ in range(2):
        with hold(f"tenant:{TENANT}:billing", ttl=60, app=app):
            contexts.append(copy_context())
    return contexts


def run(message):
    return Run(task_id=message, who="test", pid=1)


def charges(books):
    return books.number("SELECT COUNT(*) FROM charges")


def balance(books):
    return books.number("SELECT balance_cents FROM tenants WHERE id = :tenant", tenant=TENANT)


def test_a_run_that_a_newer_one_has_followed_can_not_even_begin(books, frozen):
    old, new = frozen
    new.run(books.begin, TENANT, INVOICE, run("new"))

    with pytest.raises(StaleToken):
        old.run(books.begin, TENANT, INVOICE, run("old"))

    assert [line.task_id for line in books.journal()] == ["new"]


def test_what_a_run_has_read_before_a_newer_one_paid_it_can_not_write(books, frozen):
    old, new = frozen
    read_early = old.run(books.begin, TENANT, INVOICE, run("old"))
    bill = new.run(books.begin, TENANT, INVOICE, run("new"))
    new.run(books.settle, bill, run("new"))

    with pytest.raises(StaleToken):
        old.run(books.settle, read_early, run("old"))

    assert charges(books) == 1
    assert balance(books) == OPENING_CENTS - bill.invoice.amount_cents
    assert new.run(books.begin, TENANT, INVOICE, run("next")).receipt()["receipt"] == "new"


def test_a_newer_run_that_an_older_one_has_overtaken_reads_again_and_finds_it_paid(books, frozen):
    old, new = frozen
    read_early = old.run(books.begin, TENANT, INVOICE, run("old"))
    bill = new.run(books.begin, TENANT, INVOICE, run("new"))
    old.run(books.settle, read_early, run("old"))

    with pytest.raises(RowChanged):
        new.run(books.settle, bill, run("new"))

    assert charges(books) == 1
    assert new.run(books.begin, TENANT, INVOICE, run("new")).is_paid


def test_the_same_code_without_its_guards_charges_twice(url):
    books = Ledger(url, fenced=False)
    books.open(3, slow_seconds=1)
    bills = [books.begin(TENANT, INVOICE, run(message)) for message in ("one", "other")]

    for bill in bills:
        books.settle(bill, run("either"))

    assert charges(books) == 2
    assert balance(books) == OPENING_CENTS - bills[0].invoice.amount_cents  # the other charge is forgotten
    books.close()
