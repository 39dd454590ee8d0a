"""Fence triggers and those who know nothing of them: other roles, other search paths, unlikely values and texts."""

from __future__ import annotations

import uuid
from contextlib import closing

import pytest
from bench.drivers import parameters
from sqlalchemy import Column, MetaData, String, Table, create_engine, insert
from sqlalchemy.exc import DBAPIError, IntegrityError

from celery_fence.fencing.trigger import FenceTrigger, trigger_refusals
from celery_fence.fencing.writer import Writer

TABLE = (
    "CREATE TABLE public.payouts (id BIGINT PRIMARY KEY, state TEXT,"
    " last_fencing_token BIGINT NOT NULL DEFAULT 0, last_fencing_owner VARCHAR(64))"
)
SAID = "celery_fence: stale write to payouts refused (seen 9)"

postgres = pytest.mark.parametrize("name", parameters("postgresql"))


@pytest.fixture
def database(fresh_database, name):
    made = fresh_database(name)
    made.run(TABLE, "INSERT INTO public.payouts VALUES (1, 'new', 5, 'somebody')")
    return made


@postgres
def test_in_shadow_a_role_without_rights_on_the_sightings_writes(database):
    role = f"fence_{uuid.uuid4().hex[:12]}"
    database.run(*FenceTrigger("payouts", mode="shadow").create("postgresql"))
    database.run(f"CREATE ROLE {role}", f"GRANT SELECT, UPDATE ON payouts TO {role}")
    try:
        database.run(f"SET LOCAL ROLE {role}", "UPDATE payouts SET state = 'sent'")
        assert database.run("SELECT what FROM fence_sightings") == [("unfenced",)]
    finally:
        database.run(f"REVOKE ALL ON payouts FROM {role}", f"DROP ROLE {role}")
    assert database.run("SELECT state FROM payouts") == [("sent",)]


@postgres
def test_in_shadow_a_connection_with_another_search_path_writes(database):
    database.run(*FenceTrigger("payouts", mode="shadow").create("postgresql"))
    database.run(
        "CREATE SCHEMA elsewhere",
        "SET LOCAL search_path = elsewhere",
        "UPDATE public.payouts SET state = 'sent', last_fencing_token = 4",
    )

    assert database.run("SELECT what, token, seen FROM public.fence_sightings") == [("stale", 4, 5)]
    assert database.run("SELECT state FROM public.payouts") == [("sent",)]


@postgres
@pytest.mark.parametrize("token", [-1, -(3 * 10**18), -(2**62), -(2**63)])
def test_a_token_below_zero_is_a_stale_one(database, token):
    """Not one that shows nothing, with which the row would get a huge token."""
    database.run(*FenceTrigger("payouts", unfenced="allow").create("postgresql"))
    with pytest.raises(Exception, match="celery_fence: stale write to payouts refused"):
        database.run(f"UPDATE payouts SET last_fencing_token = {token}")

    assert database.run("SELECT last_fencing_token FROM payouts") == [(5,)]


@pytest.mark.parametrize("name", parameters())
def test_another_error_about_a_text_that_reads_like_a_refusal_comes_out_as_it_is(fresh_database, name):
    table = Table("log", MetaData(), Column("line", String(80), primary_key=True))
    engine = create_engine(fresh_database(name).url())
    table.create(engine)
    write = insert(table).values(line=SAID)
    with engine.begin() as connection:
        connection.execute(write)

    with (
        closing(engine.connect()) as connection,
        pytest.raises(IntegrityError) as raised,
        trigger_refusals(Writer("payout:1", 5, "somebody")),
    ):
        connection.execute(write)
    assert isinstance(raised.value, DBAPIError)
    engine.dispose()
