"""The receiving end of an HTTP call: a stale request doesn't reach the application, whichever way it is served."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from socketserver import ThreadingMixIn
from urllib.error import HTTPError
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.validate import validator

import pytest

from celery_fence.fencing.http import STAMP, AsgiTokenGate, WsgiTokenGate
from celery_fence.fencing.streams import MemoryMarks, Stamp, TokenGate

URL = "/tenants/7/payouts"


def stamped(token, scope="tenant:7", **more):
    return {"X-Fencing-Token": str(token), "X-Fencing-Scope": scope, **more}


def tenant_of(method, path):
    """A service in which each tenant has its own scope."""
    _, kind, number, *_ = path.split("/")
    return f"tenant:{number}" if kind == "tenants" else None


class Wsgi:
    """A service behind `WsgiTokenGate`, and what reached it."""

    def __init__(self, gate, **how):
        self.reached = []
        # Checked on both sides of the gate: by the letter of PEP 3333.
        self.served = validator(WsgiTokenGate(validator(self.application), gate, **how))

    def application(self, environ, start_response):
        self.reached.append(environ[STAMP])
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"done"]

    def ask(self, method, headers, path=URL):
        answer = {}
        environ = {
            "REQUEST_METHOD": method, "SCRIPT_NAME": "", "PATH_INFO": path, "QUERY_STRING": "",
            "SERVER_NAME": "here", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1",
            "wsgi.version": (1, 0), "wsgi.url_scheme": "http", "wsgi.input": Body(), "wsgi.errors": Body(),
            "wsgi.multithread": True, "wsgi.multiprocess": False, "wsgi.run_once": False,
            **{f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()},
        }  # fmt: skip

        def start_response(status, headers, exc_info=None):
            answer.update(status=int(status.split()[0]), headers=dict(headers))
            return lambda data: None

        chunks = self.served(environ, start_response)
        body = b"".join(chunks)
        chunks.close()
        return answer["status"], answer["headers"], body


class Body:
    """An empty stream, of either direction."""

    def read(self, *_):
        return b""

    readline = readlines = __iter__ = write = writelines = flush = read


class Asgi:
    """A service behind `AsgiTokenGate`, and what reached it; driven by hand."""

    def __init__(self, gate, **how):
        self.reached = []
        self.served = AsgiTokenGate(self.application, gate, **how)

    async def application(self, scope, receive, send):
        self.reached.append(scope.get(STAMP))
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]}
        )
        await send({"type": "http.response.body", "body": b"done"})

    def ask(self, method, headers, path=URL, kind="http"):
        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
        return self.ask_raw({"type": kind, "method": method, "path": path, "headers": raw})

    def ask_raw(self, scope):
        sent = []

        async def send(message):
            sent.append(message)

        asyncio.run(self.served(scope, None, send))
        start, *bodies = sent
        headers = {name.decode().title(): value.decode() for name, value in start["headers"]}
        return start["status"], headers, b"".join(each["body"] for each in bodies)


@pytest.fixture
def told():
    return []


@pytest.fixture
def gate(told):
    return TokenGate(MemoryMarks(), emit=told.append)


@pytest.fixture(params=[Wsgi, Asgi])
def make_service(request, gate):
    return lambda **how: request.param(gate, **how)


@pytest.fixture
def service(make_service):
    return make_service()


def test_a_current_request_passes_and_the_application_knows_whose_it_is(service):
    status, _, body = service.ask("PUT", Stamp("tenant:7", 5, "o1").http_headers())

    assert (status, body) == (200, b"done")
    assert service.reached == [Stamp("tenant:7", 5, "o1")]


def test_a_stale_request_is_answered_with_409_and_does_not_reach_the_application(service, told):
    service.ask("PUT", stamped(6))
    status, headers, body = service.ask("PUT", stamped(5))

    problem = json.loads(body)
    assert (status, problem["status"], problem["title"]) == (409, 409, "Stale fencing token")
    assert {name: problem[name] for name in ("scope", "token", "seen")} == {
        "scope": "tenant:7", "token": 5, "seen": 6,
    }  # fmt: skip
    assert headers["Content-Type"] == "application/problem+json"
    assert int(headers["Content-Length"]) == len(body)
    assert [stamp.token for stamp in service.reached] == [6]
    assert [event.what for event in told] == [f"PUT {URL}"]


def test_a_request_that_is_sent_again_passes_again(service):
    assert [service.ask("POST", stamped(5))[0] for _ in range(2)] == [200, 200]


@pytest.mark.parametrize(
    "headers",
    [
        stamped("five"),
        stamped("5,6"),
        stamped("-5"),
        stamped(2**53),
        stamped(5, ""),
        stamped(5, "%FF"),
        {"X-Fencing-Token": "5"},
        {"X-Fencing-Scope": "tenant:7"},
    ],
)
def test_malformed_headers_are_answered_with_400(service, headers):
    status, _, body = service.ask("PUT", headers)

    assert (status, json.loads(body)["title"]) == (400, "Malformed fencing headers")
    assert service.reached == []


def test_a_request_without_headers_passes_unchecked_by_default(service):
    assert service.ask("PUT", {})[0] == 200
    assert service.reached == [None]


def test_a_request_without_headers_is_refused_if_they_are_required(make_service):
    service = make_service(required=True)
    status, _, body = service.ask("DELETE", {})

    assert (status, json.loads(body)["title"]) == (400, "Fencing headers required")
    assert service.reached == []


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_who_only_reads_is_asked_nothing(make_service, method):
    service = make_service(required=True)
    service.ask("PUT", stamped(6))

    assert [service.ask(method, headers)[0] for headers in ({}, stamped(5), stamped("x"))] == [200] * 3


def test_a_token_for_another_scope_than_the_request_writes_to_is_refused(make_service):
    service = make_service(scope_of=tenant_of)
    assert service.ask("PUT", stamped(5, "tenant:7"))[0] == 200
    status, _, body = service.ask("PUT", stamped(9, "tenant:8"))

    problem = json.loads(body)
    assert (status, problem["title"]) == (400, "Fencing scope mismatch")
    assert (problem["scope"], problem["expected_scope"]) == ("tenant:8", "tenant:7")
    assert service.ask("PUT", stamped(9, "tenant:8"), path="/other/1")[0] == 200
    assert [stamp.scope for stamp in service.reached] == ["tenant:7", "tenant:8"]


def test_a_path_is_compared_as_people_read_it(make_service):
    service = make_service(scope_of=tenant_of)
    path = "/tenants/müller/payouts"
    given = path.encode().decode("latin-1") if isinstance(service, Wsgi) else path

    assert service.ask("PUT", Stamp("tenant:müller", 5).http_headers(), path=given)[0] == 200


def test_a_mismatch_raises_no_mark(make_service):
    service = make_service(scope_of=tenant_of)
    service.ask("PUT", stamped(9, "tenant:8"))

    assert service.ask("PUT", stamped(5, "tenant:8"), path="/tenants/8")[0] == 200


def test_in_shadow_a_stale_request_passes_and_is_told(told):
    gate = TokenGate(MemoryMarks(), mode="shadow", emit=told.append)
    for service in (Wsgi(gate), Asgi(gate)):
        service.ask("PUT", stamped(6))
        assert service.ask("PUT", stamped(5))[0] == 200

    assert [event.refused for event in told] == [False, False]


class Broken:
    """Marks that are out of reach."""

    def raise_mark(self, scope, mark):
        raise ConnectionError("away")


@pytest.mark.parametrize("kind", [Wsgi, Asgi])
def test_while_the_marks_are_out_of_reach_nothing_that_is_stamped_reaches_the_application(kind):
    service = kind(TokenGate(Broken()))
    with pytest.raises(ConnectionError):
        service.ask("PUT", stamped(5))

    assert service.reached == []


def test_a_stamp_that_somebody_else_left_in_the_environ_is_not_believed():
    seen = []
    served = WsgiTokenGate(lambda environ, _: seen.append(environ[STAMP]) or [], TokenGate(MemoryMarks()))
    list(served({"REQUEST_METHOD": "PUT", STAMP: Stamp("tenant:7", 5)}, None))

    assert seen == [None]


def test_a_header_that_comes_twice_over_asgi_is_malformed(gate):
    raw = [(b"x-fencing-token", b"5"), (b"x-fencing-token", b"9"), (b"x-fencing-scope", b"s")]
    service = Asgi(gate)

    assert service.ask_raw({"type": "http", "method": "PUT", "path": "/", "headers": raw})[0] == 400


def test_lifespan_and_websockets_are_handed_on(gate):
    seen = []

    async def application(scope, receive, send):
        seen.append((scope, receive, send))

    served = AsgiTokenGate(application, gate, required=True)
    given = [({"type": kind}, object(), object()) for kind in ("lifespan", "websocket")]
    for each in given:
        asyncio.run(served(*each))

    assert seen == given


def test_the_loop_goes_on_while_the_marks_are_asked():
    """A store that answers only once the loop has run something else."""

    async def both():
        loop, asked, let_go = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        class Slow(MemoryMarks):
            def raise_mark(self, scope, mark):
                loop.call_soon_threadsafe(asked.set)
                assert let_go.wait(30), "the loop stood still"
                return super().raise_mark(scope, mark)

        async def send(message): ...

        service = Asgi(TokenGate(Slow()))
        raw = [(name.lower().encode(), value.encode()) for name, value in stamped(5).items()]
        scope = {"type": "http", "method": "PUT", "path": "/", "headers": raw}
        request = asyncio.create_task(service.served(scope, None, send))
        await asked.wait()
        let_go.set()
        await request
        return service.reached

    assert asyncio.run(both()) == [Stamp("tenant:7", 5)]


class Threading(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def http(gate):
    """A real server on loopback; ask it with a method and headers."""
    service = Wsgi(gate)
    with make_server("127.0.0.1", 0, service.served, Threading, Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()

        def ask(headers):
            url = f"http://127.0.0.1:{server.server_port}{URL}"
            request = urllib.request.Request(url, method="PUT", headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return answer.status
            except HTTPError as error:
                return json.loads(error.read())["status"]

        yield ask
        server.shutdown()
        thread.join(30)


def test_over_a_real_connection_the_headers_of_a_lease_are_understood(http, make_lease):
    straggler, successor = make_lease(key="schlüssel:€ 7"), make_lease(key="schlüssel:€ 7")

    assert http(straggler.headers()) == 200
    assert http(successor.headers()) == 200
    assert http(straggler.headers()) == 409
    assert http({**successor.headers(), "X-Fencing-Token": "x"}) == 400


def test_of_twenty_callers_at_once_none_passes_behind_a_newer_one(http):
    barrier = threading.Barrier(20)

    def call(number):
        barrier.wait(timeout=30)
        return [(token, http(stamped(token))) for token in range(number, 100, 20) if token]

    with ThreadPoolExecutor(20) as callers:
        answers = dict(pair for done in callers.map(call, range(20)) for pair in done)

    assert answers[99] == 200
    assert set(answers.values()) <= {200, 409}
    assert [http(stamped(token)) for token in (1, 50, 98)] == [409] * 3
