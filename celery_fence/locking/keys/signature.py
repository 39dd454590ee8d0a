"""The signature that a call's arguments are bound to."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

from celery_fence.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def signature_of(run: Callable[..., Any], *, without: str | None = None) -> inspect.Signature:
    """
    The signature callers use: that of the function below all wrappers, less the parameter *without*.

    *run* is a task's ``run`` as it hangs on the task's instance, so ``self`` is
    gone. `ConfigError` for what has no signature.
    """
    try:
        signature = own_signature(run)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{run!r} has no signature that a key could be bound to: {error}") from error
    kept = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.name != without or parameter.kind in _VARIADIC
    ]
    return signature.replace(parameters=kept)


def own_signature(function: Callable[..., Any]) -> inspect.Signature:
    """
    That of *function* itself, its annotations not evaluated.

    Since Python 3.14 evaluating could fail for names that only type checkers import.
    """
    if sys.version_info >= (3, 14):
        import annotationlib

        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(function)


def fits(spec: Callable[..., Any], signature: inspect.Signature) -> bool:
    """Whether *spec* can be called as the task can; yes where it has no signature to ask."""
    by_position = [
        each.name
        for each in signature.parameters.values()
        if each.kind in {each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD}
    ]
    by_name = {each.name: None for each in signature.parameters.values() if each.kind is each.KEYWORD_ONLY}
    try:
        own_signature(spec).bind(*by_position, **by_name)
    except TypeError:
        return False
    except ValueError:
        return True
    return True
