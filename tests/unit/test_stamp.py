"""What a message, a stream entry or a request says about its sender is read back as it was, or not at all."""

from __future__ import annotations

import http.client
import io
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_fence.errors import MalformedStamp, UnfencedWrite
from celery_fence.fencing.stamp import LONGEST, MOST, Stamp
from celery_fence.fencing.writer import writer_for
from celery_fence.locking import current
from celery_fence.locking.null_lease import NullLease

# What has a meaning in a header or an escape, or none in ASCII; half a surrogate pair as well.
names = st.text(alphabet='a%25:,;\n\0 "ü€\ud800', min_size=1, max_size=12)
stamps = st.builds(Stamp, names, st.integers(1, MOST - 1), st.none() | names)


@given(stamps)
def test_the_headers_of_a_message_are_read_back(stamp):
    assert Stamp.read(stamp.headers()) == stamp


@given(stamps)
def test_the_fields_of_a_stream_entry_are_read_back(stamp):
    raw = {
        name.encode(): str(value).encode("utf-8", "surrogatepass") for name, value in stamp.headers().items()
    }

    assert Stamp.read(raw) == stamp


@given(stamps)
def test_the_headers_of_a_request_are_read_back_after_the_wire(stamp):
    assert Stamp.read_http(over_the_wire(stamp.http_headers())) == stamp


@given(names)
def test_no_key_can_break_the_headers_of_a_lease(key):
    from celery_fence.locking.lease import HEADER_SAFE, Lease

    headers = Lease.headers(HeldLease(key))

    assert set(headers["X-Fencing-Scope"]) <= {*HEADER_SAFE, "%"}
    assert Stamp.read_http(over_the_wire(headers)) == Stamp(key, 5)


class HeldLease:
    """What `Lease.headers` looks at."""

    token = 5

    def __init__(self, key):
        self.key = key


def over_the_wire(headers):
    """As a server of the standard library reads what a client of it has written."""
    sent = "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n"
    return dict(http.client.parse_headers(io.BytesIO(sent.encode("latin-1"))))


def test_a_lease_says_in_a_message_whose_it_is(make_lease):
    lease = make_lease(key="tenant:7")

    assert lease.message_headers() == {
        "fencing_token": lease.token,
        "fencing_scope": "tenant:7",
        "fencing_owner": lease.owner,
    }
    assert (
        Stamp.read(lease.message_headers()) == Stamp.of(lease) == Stamp("tenant:7", lease.token, lease.owner)
    )


def test_a_run_without_a_lease_stamps_nothing():
    assert NullLease().message_headers() == {}
    assert Stamp.read(NullLease().message_headers()) is None
    with pytest.raises(UnfencedWrite):
        Stamp.of(NullLease())


def test_the_stamp_of_the_lease_that_the_code_is_under(make_lease):
    lease = make_lease()
    with current.entered(current.Frame(lease, None)):
        assert Stamp.of().token == lease.token
    with pytest.raises(UnfencedWrite, match="no lease"):
        Stamp.of()


def test_a_guard_takes_a_stamp_in_the_place_of_a_lease():
    writer = writer_for("tenant:7", Stamp("tenant:7", 5, "o1"))

    assert (writer.key, writer.token, writer.owner, writer.mode) == ("tenant:7", 5, "o1", "enforce")


@pytest.mark.parametrize("headers", [None, {}, {"other": 1}, {"fencing_owner": "o1"}])
def test_no_stamp_is_none(headers):
    assert Stamp.read(headers) is None


@pytest.mark.parametrize(
    "headers",
    [
        {"fencing_token": 5},
        {"fencing_scope": "s"},
        {"fencing_token": None, "fencing_scope": "s"},
        {"fencing_token": 5, "fencing_scope": ""},
        {"fencing_token": 5, "fencing_scope": 7},
        {"fencing_token": 5, "fencing_scope": "x" * (LONGEST + 1)},
        {"fencing_token": 5, "fencing_scope": b"\xff"},
        {"fencing_token": 5, "fencing_scope": "s", "fencing_owner": ""},
        {"fencing_token": 5, "fencing_scope": "s", "fencing_owner": ["o1"]},
        *(
            {"fencing_token": token, "fencing_scope": "s"}
            for token in (
                0,
                -1,
                2**53,
                5.0,
                True,
                "",
                "five",
                "+5",
                " 5",
                "5\n",
                "1_0",
                "\u0665",
                "5,6",
                "9" * 5000,
                [5],
            )
        ),
    ],
)
def test_half_a_stamp_and_nonsense_is_an_error(headers):
    with pytest.raises(MalformedStamp) as wrong:
        Stamp.read(headers)

    assert len(str(wrong.value)) < 250


@pytest.mark.parametrize("scope", ["%FF", "", "caf\xe9"])
def test_a_scope_that_cannot_be_read_is_an_error(scope):
    with pytest.raises(MalformedStamp):
        Stamp.read_http({"X-Fencing-Token": "5", "X-Fencing-Scope": scope})


def test_a_client_that_writes_plain_utf_8_is_understood():
    """As servers hand it on: byte by byte."""
    seen = "schlüssel:€".encode().decode("latin-1")

    assert Stamp.read_http({"x-fencing-token": "5", "X-FENCING-SCOPE": seen}) == Stamp("schlüssel:€", 5)


def test_a_malformed_stamp_is_a_value_error_that_travels():
    error = pickle.loads(pickle.dumps(MalformedStamp("wrong")))

    assert isinstance(error, ValueError)
    assert str(error) == "wrong"
