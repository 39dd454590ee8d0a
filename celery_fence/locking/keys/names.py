"""The names in a template, checked against the signature of the task that it is for."""

from __future__ import annotations

import inspect

from celery_fence.locking.keys.template import RESERVED, SLOT, Placeholder, Template, wrong_template
from celery_fence.locking.suggest import hint


def check_names(template: Template, signature: inspect.Signature, task: str, *, slots: bool) -> None:
    """`ConfigError` for a placeholder that no parameter has, or that can't mean what it says; *slots* may be named."""
    open_ended = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
    for field in template.placeholders:
        is_parameter = field.name in signature.parameters
        if field.name in RESERVED:
            _check_reserved(field, template, task, is_parameter=is_parameter)
        elif field.name == SLOT and not is_parameter:
            _check_slot(field, template, task, slots=slots or open_ended)
        elif not is_parameter and not open_ended:
            names = ", ".join(signature.parameters) or "no parameters"
            raise wrong_template(
                template.text,
                f"<{field.written}>: the task has no parameter {field.name!r}."
                f"{hint(field.name, signature.parameters)} It has {names}.",
                task,
            )


def _check_reserved(field: Placeholder, template: Template, task: str, *, is_parameter: bool) -> None:
    if is_parameter:
        why = (
            f"<{field.name}> means two things, a parameter of the task and the name with a meaning of its own"
        )
        raise wrong_template(
            template.text, f"{why}; rename the parameter, or let a callable make the key.", task
        )
    if field.items:
        raise wrong_template(template.text, f"<{field.name}> has no items; write <{field.name}>.", task)


def _check_slot(field: Placeholder, template: Template, task: str, *, slots: bool) -> None:
    if not slots:
        why = (
            f"<{field.name}>, the scheduled time of a periodic run, belongs into idempotency_key: a run is locked "
            "against every other one of its work, and the record says which slots are done."
        )
        raise wrong_template(template.text, why, task)
    if field.items:
        raise wrong_template(template.text, f"<{field.name}> has no items; write <{field.name}>.", task)
