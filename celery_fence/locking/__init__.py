"""
WHO MAY RUN. The theory of celery-fence, with nothing but the standard library.

A *key* names a piece of work. An *owner* (fresh for every execution) asks the
store for a *lease* on it: a right for a while. The answer carries a *fencing
token* that only grows, so whoever keeps state can tell a newer holder from an
older one. The *heartbeat* renews the lease until the work ends.

The holder never asks the network whether it may go on. It trusts its lease until
``asked_at + ttl - margin`` on its own clock, counted from the moment it ASKED, so
that a slow or lost reply shortens trust and never lengthens it. When trust ends
the lease is *lost*, whatever the store may think.
"""
