"""The result that a record keeps, encoded as Celery encodes results."""

from __future__ import annotations

import base64
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, Self

from kombu import serialization
from kombu.exceptions import EncodeError, KombuError

from celery_fence.errors import UnstorableResult

LARGEST_RESULT: Final = 2**20
"""Characters of an encoded result that a record keeps."""

JSON: Final = "json"
BINARY: Final = "binary"


@dataclass(frozen=True, slots=True)
class Encoding:
    """How results are written (*serializer*), and what is read: only what the app accepts as a result."""

    serializer: str = JSON
    accept: Collection[str] = (JSON,)

    @classmethod
    def of(cls, source: Any) -> Self:
        """That of an app, or of a task's app; JSON where neither is known."""
        conf = getattr(getattr(source, "app", source), "conf", None)
        if conf is None:
            return cls()
        accepted = conf.result_accept_content or conf.accept_content or ()
        return cls(conf.result_serializer, {conf.result_serializer, *accepted})

    def encode(self, value: Any, *, key: str) -> str:
        """
        *value* as the record of *key* keeps it: a line with content type and encoding, then the payload.

        A binary payload is written in base 64: a person reads the others, and every driver takes text.

        Raises:
            UnstorableResult: it can't be encoded, or has more than `LARGEST_RESULT` characters.

        """
        try:
            content_type, encoding, payload = serialization.dumps(value, serializer=self.serializer)
        except (EncodeError, TypeError, ValueError) as error:
            raise _unstorable(key, f"the serializer {self.serializer!r} can't encode it ({error})") from error
        body = base64.b64encode(payload).decode() if isinstance(payload, bytes) else payload
        if len(body) > LARGEST_RESULT:
            raise _unstorable(key, f"it has {len(body)} characters, and {LARGEST_RESULT} is the limit")
        return f"{content_type};{encoding}\n{body}"

    def decode(self, kept: str) -> Any:
        """The value that was encoded as *kept*; `ValueError` where it can't be read, or isn't accepted."""
        head, _, body = kept.partition("\n")
        content_type, _, encoding = head.partition(";")
        accept = {serialization.registry.name_to_type.get(each, each) for each in self.accept}
        if content_type not in accept:
            raise ValueError(f"it is {content_type or 'nothing'}, which the app doesn't accept as a result")
        try:
            payload = base64.b64decode(body) if encoding == BINARY else body
            return serialization.loads(payload, content_type, encoding, accept=accept)
        except (KombuError, ValueError, LookupError) as error:
            raise ValueError(f"it is {content_type}, and can't be read: {error}") from error


def _unstorable(key: str, why: str) -> UnstorableResult:
    return UnstorableResult(
        f"The result of {key!r} can't be kept in its record: {why}. Nothing is recorded: let this transaction roll "
        "back, and return something small and plain, such as an id.",
        record=key,
    )
