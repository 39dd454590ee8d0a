"""The notes that travel with a message: they come back as they were, and what isn't ours is never an error."""

from __future__ import annotations

import json
import math

from hypothesis import example, given
from hypothesis import strategies as st

from celery_fence.locking.policies import GiveUp, Miss, Requeue, Retry, decide
from celery_fence.task.notes import HEADER, Count, Notes, Route

counts = st.integers(0, 10**6)
times = st.floats(0, 4e9)
texts = st.text(max_size=20)
a_count = st.builds(
    Count, stage=counts, attempt=counts, stage_first=times, total=counts, first=times, last=times
)
notes = st.builds(
    Notes,
    delivery=texts,
    misses=a_count,
    outages=a_count,
    put_offs=counts,
    losses=counts,
    route=st.none() | st.builds(Route, exchange=texts, routing_key=texts, queue=texts),
)

scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts
mangled = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)
)
a_mangled_count = st.dictionaries(
    st.sampled_from(["stage", "attempt", "stage_first", "total", "first", "last", "new"]), scalars
)
a_mangled_header = mangled | st.fixed_dictionaries(
    {},
    optional={
        "delivery": mangled,
        "misses": mangled | a_mangled_count,
        "outages": mangled | a_mangled_count,
        "put_offs": mangled,
        "losses": mangled,
        "route": mangled | st.dictionaries(st.sampled_from(["exchange", "queue", "new"]), scalars),
        "new": mangled,
    },
)


@given(notes)
def test_notes_come_back_from_a_message_as_they_were(notes):
    headers = json.loads(json.dumps({HEADER: notes.header()}))

    assert Notes.read(headers) == notes


@given(a_mangled_header)
@example({"misses": {"first": 10**400, "total": 1, "attempt": 10**400, "stage_first": 10**400}})
@example({"misses": {"first": math.nan, "total": 1, "attempt": 1, "stage_first": math.nan, "last": math.nan}})
@example({"put_offs": 10**400, "losses": 10**400})
@example({"misses": {"attempt": -3, "total": -3, "stage": -3}, "losses": -3})
def test_whatever_the_header_holds_the_next_delay_is_a_sane_number_and_the_notes_can_be_sent(header):
    found = Notes.read({HEADER: header})
    now = 1.8e9

    for count in (found.misses, found.outages):
        assert 0 <= count.waited(now) <= now
        again = count.another(stage=0, attempt=count.attempt + 1, now=now)
        assert again.total == count.total + 1 > 0
        miss = Miss(
            "job:1",
            None,
            attempt=count.attempt,
            waited=count.waited_in_stage(now),
            stage=count.stage,
            since_last=count.since_last(now),
        )
        for policy in (Retry(), Requeue()):
            decision = decide(policy, miss)
            assert isinstance(decision, GiveUp) or 0 <= decision.delay <= 60  # a later stage gives up
    assert Notes.read(json.loads(json.dumps({HEADER: found.header()}))) == found


@given(mangled)
def test_headers_that_are_none_or_have_no_mapping_of_ours_are_empty_notes(value):
    assert Notes.read(None) == Notes.read({}) == Notes()
    if not isinstance(value, dict):
        assert Notes.read({HEADER: value}) == Notes()
