"""The fencing token among the keyword arguments of a call: put in for the body, never part of a message."""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger(__name__)


def injected(kwargs: dict[str, Any], keyword: str | None, lease: Any) -> dict[str, Any]:
    """A copy of *kwargs* with the token, so that nothing leaks into the message; None where there is no lease."""
    return kwargs if keyword is None else {**kwargs, keyword: lease.token}


def without_token(task: str, kwargs: dict[str, Any], keyword: str | None) -> dict[str, Any]:
    """*kwargs* without a fencing token that a message should never carry."""
    if keyword is None or keyword not in kwargs:
        return kwargs
    logger.warning("%s was sent with %s=...: ignored, celery-fence injects its own", task, keyword)
    return {name: value for name, value in kwargs.items() if name != keyword}
