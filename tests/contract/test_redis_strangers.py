"""What listens isn't a Redis, or something on the way mangles what it says: the store says so and survives it."""

from __future__ import annotations

import socket
import threading
import time
import traceback
from itertools import product
from typing import Self

import pytest

from celery_fence.errors import StoreUnavailable
from celery_fence.locking.store import Claim, Ending, Granted, Note, Renewal
from celery_fence.stores import from_url

CLAIM = Claim("tenant:7:sync", "owner", 30.0, delivery="d1", message="m1", record="payment:7")
SECRET = "s3cr3t"
OK = b"+OK\r\n"

QUESTIONS = {
    "acquire": lambda store: store.acquire(CLAIM),
    "renew": lambda store: store.renew([Renewal(CLAIM, 5, 1.0)]),
    "release": lambda store: store.release(CLAIM, 5, Ending("returned", b"value")),
    "force_release": lambda store: store.force_release(CLAIM.key),
    "holders": lambda store: store.holder(CLAIM.key),
    "list": lambda store: list(store.leases()),
    "note": lambda store: store.note(
        [Note(CLAIM.key, "d1", "returned", 60.0), Note("k", "d2", "failed", 60.0)]
    ),
    "history": lambda store: store.history(CLAIM.key),
    "check": lambda store: store.check(),
    "raise_counter": lambda store: store.raise_counter(CLAIM, 5, 6),
    "claim_record": lambda store: store.claim_record(CLAIM, 5),
    "end_record": lambda store: store.end_record(CLAIM, 5, Ending("returned")),
    "records": lambda store: store.record(CLAIM.record),
    "delete_record": lambda store: store.delete_record(CLAIM.record),
}

ANSWERS = {
    "OK": OK,
    "three letters": b"+YES\r\n",
    "nil": b"$-1\r\n",
    "a number": b":1\r\n",
    "no length": b"$x\r\n",
    "no number": b":zz\r\n",
    "a list of one": b"*1\r\n$2\r\nOK\r\n",
    "a list of nils": b"*3\r\n$-1\r\n$-1\r\n$-1\r\n",
    "a nested list": b"*1\r\n*1\r\n$2\r\nOK\r\n",
    "a web page": b"HTTP/1.1 502 Bad Gateway\r\n\r\n",
    "bytes of all kinds": bytes(range(128, 256)) + b"\r\n",
}

MEANT = {("history", "a list of nils"), ("list", "a list of one")}
"""Nothing is remembered; a lease on the key ``OK``."""


class Stranger:
    """Listens on loopback, and answers a question for a lease with *answer*, all else with *greeting*."""

    def __init__(self, answer: bytes = OK, *, greeting: bytes = OK, pause: float = 0.0) -> None:
        self._answer, self._greeting, self._pause = answer, greeting, pause
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._clients: list[socket.socket] = []
        self.port = self._listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"

    @property
    def accepted(self) -> int:
        return len(self._clients)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for client in self._clients:
            client.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            self._clients.append(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            while request := client.recv(65536):
                self._say(client, self._answer if b"EVAL" in request else self._greeting)
        except OSError:
            return  # closed

    def _say(self, client: socket.socket, answer: bytes) -> None:
        if not self._pause:
            client.sendall(answer)
            return
        for byte in answer:
            time.sleep(self._pause)
            client.sendall(bytes([byte]))


@pytest.mark.parametrize(
    ("question", "answer"), [pair for pair in product(QUESTIONS, ANSWERS) if pair not in MEANT]
)
def test_an_answer_that_no_script_gives_is_no_answer_and_its_connection_is_not_kept(question, answer):
    with Stranger(ANSWERS[answer]) as stranger:
        store = from_url(stranger.url, timeout=5)

        for _ in range(2):
            with pytest.raises(
                StoreUnavailable, match=f"no usable answer to '{question}'.*something else listens"
            ):
                QUESTIONS[question](store)
        assert stranger.accepted == 2


@pytest.mark.parametrize("greeting", ["no length", "nil", "a number", "a web page"])
def test_a_stranger_is_recognised_by_its_greeting(greeting):
    with Stranger(greeting=ANSWERS[greeting]) as stranger:
        store = from_url(stranger.url, timeout=5)

        with pytest.raises(StoreUnavailable, match="something else listens"):
            store.acquire(CLAIM)


def test_a_word_of_another_question_is_no_answer():
    """Above all, ``ended`` would end the message that asks."""
    words = (b"kept", b"gone", b"released", b"free", b"ENDED")
    for word in words:
        with Stranger(b"*1\r\n$%d\r\n%b\r\n" % (len(word), word)) as stranger:
            store = from_url(stranger.url, timeout=5)
            with pytest.raises(StoreUnavailable, match="first b'"):
                store.acquire(CLAIM)


def test_the_message_shows_how_the_answer_begins_and_no_more():
    value = b"*2\r\n$300\r\n" + b"x" * 300 + b"\r\n$6\r\n" + SECRET.encode() + b"\r\n"
    with Stranger(value) as stranger, pytest.raises(StoreUnavailable) as caught:
        from_url(stranger.url, timeout=5).acquire(CLAIM)

    said = str(caught.value)
    assert "2 items, first b'xxx" in said
    assert SECRET not in said
    assert len(said) < 400


def test_a_page_of_text_is_not_repeated_in_full():
    with Stranger(b"x" * 5000 + b"\r\n") as stranger, pytest.raises(StoreUnavailable) as caught:
        from_url(stranger.url, timeout=5).acquire(CLAIM)

    assert len(str(caught.value)) < 500


def test_a_server_that_repeats_the_command_it_does_not_know_does_not_make_us_tell_the_password():
    refusal = f"-ERR unknown command 'AUTH', with args beginning with: '{SECRET}'\r\n".encode()
    with Stranger(greeting=refusal) as stranger, pytest.raises(StoreUnavailable) as caught:
        from_url(stranger.url.replace("//", f"//:{SECRET}@"), timeout=5).acquire(CLAIM)

    assert "'***'" in str(caught.value)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_reply_that_drips_is_given_up_within_three_timeouts():
    with Stranger(b"*3\r\n$7\r\ngranted\r\n$1\r\n7\r\n$1\r\n7\r\n", pause=0.1) as stranger:
        store = from_url(stranger.url, timeout=0.3)
        started = time.monotonic()

        with pytest.raises(StoreUnavailable, match="didn't answer in time"):
            store.acquire(CLAIM)

        assert 0.8 < time.monotonic() - started < 1.8
        assert stranger.accepted == 1


def test_a_reply_in_pieces_is_put_together():
    with Stranger(b"*3\r\n$7\r\ngranted\r\n$1\r\n7\r\n$7\r\n2000000\r\n", pause=0.001) as stranger:
        assert from_url(stranger.url, timeout=5).acquire(CLAIM) == Granted(token=7, since=2.0)
