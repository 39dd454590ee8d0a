"""Redis's redelivery at the pace that a test asks for, also with a kombu that can't be told."""

from __future__ import annotations

from typing import Any

from kombu.transport.redis import Channel, QoS, Transport


def sweep_often() -> None:
    """
    Look each second for messages that nobody acknowledged.

    Before 5.7, kombu does so about every 100 s (each tenth of its sweeps, which are 10 s
    apart) and doesn't know the options ``unacked_restore_interval`` and ``..._throttle``.
    """
    if hasattr(Channel, "unacked_restore_interval"):
        return
    QoS.restore_visible.__defaults__ = (0, 10, 1)
    register = Transport.register_with_event_loop

    def register_with_event_loop(self: Any, connection: Any, loop: Any) -> None:
        register(self, connection, loop)
        loop.call_repeatedly(1, self.cycle.maybe_restore_messages)

    Transport.register_with_event_loop = register_with_event_loop
