"""
What a piece of work is called: the business key.

A *template* such as ``tenant:<tenant_id>:sync`` is taken apart and checked against
the task's signature when the task is declared, and filled from the bound arguments
when it runs. Two rules make keys trustworthy. One piece of work has one key: position,
name and default of an argument, and a value before and after the serializer, give the
same text. Two pieces of work have two keys: values are escaped, so that they can't
contain a separator, and what is too long ends with a digest of all of it.

By design, values are compared as text: ``1`` and ``"1"`` are one key, as are a UUID and
its text; ``True`` is ``true`` and so differs from ``1``. None is written ``~``.
"""

from celery_fence.locking.keys.advice import warnings_for
from celery_fence.locking.keys.rule import KeyRule, key_rule, names_in_template, render_template
from celery_fence.locking.keys.signature import signature_of

__all__ = ["KeyRule", "key_rule", "names_in_template", "render_template", "signature_of", "warnings_for"]
