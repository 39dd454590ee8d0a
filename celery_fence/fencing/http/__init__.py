"""
The receiving end of an HTTP call: a gate in front of a WSGI or an ASGI application.

The caller sends `lease.headers()`. A request whose token is older than one already
seen for its scope is answered with 409 and doesn't reach the application; one whose
headers make no sense with 400. The application finds the `Stamp` of a request that
passed as `STAMP` in the WSGI environ or the ASGI scope (None without headers), and
can hand it to a guard in the place of a lease.

**What that can't do.** Between the gate and the application's own write there is
time, and a newer request may pass and write in it. Where that matters, hand the
stamp on to a guard in the transaction that writes (`pass_gate`, `FencedMixin`); the
middleware then spares it the requests that are stale already.

Headers are believed: put it behind whatever tells strangers from callers. A stranger
with a large token could close a scope to everybody.
"""

from celery_fence.fencing.http.asgi import AsgiTokenGate
from celery_fence.fencing.http.reception import STAMP
from celery_fence.fencing.http.wsgi import WsgiTokenGate

__all__ = ["STAMP", "AsgiTokenGate", "WsgiTokenGate"]
