"""What a reader of the template would ask its author."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from celery_fence.locking.keys.template import ARGUMENTS, TASK, Template

if TYPE_CHECKING:
    from celery_fence.locking.keys.rule import KeyRule

_UNIQUE = re.compile(
    r"(^|_)(uuid\d?|guid|ulid|nonce|timestamp|now|random|etag"
    r"|(task|request|req|trace|span|correlation|message|msg|delivery|event|run|execution|attempt)_?id"
    r"|(created|sent|started|requested|queued|scheduled|triggered)_?(at|on|time)"
    r"|attempt|retries|time|ts|eta)($|_)",
    re.IGNORECASE,
)
_MANY = 3


def warnings_for(rule: KeyRule) -> list[str]:
    """
    Why this key may never exclude anything, in sentences; an empty list is the good answer.

    A guess by names, so advice and not an error. A callable can't be judged.
    """
    if not isinstance(rule.made_by, Template):
        return []
    parameters = list(rule.signature.parameters)
    names = {field.name for field in rule.made_by.placeholders}
    in_key = [field.written for field in rule.made_by.placeholders if field.name not in {TASK, ARGUMENTS}]
    in_key += parameters if ARGUMENTS in names else []
    about = f"lock_key {rule.text!r} of task {rule.task!r}"
    warnings = [
        f"{about}: <{name}> looks new for every call, so the key would never exclude anything; leave it out."
        for name in dict.fromkeys(in_key)
        if _UNIQUE.search(re.sub(r"[\[\]]+", "_", name))
    ]
    everything = ARGUMENTS in names or names >= set(parameters)
    if everything and len(parameters) >= _MANY:
        warnings.append(
            f"{about}: holds every argument, so only exact copies of a call exclude each other; "
            "name those that say what is worked on."
        )
    return warnings
