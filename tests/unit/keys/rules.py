"""The rules of keys that these tests are about."""

from celery import Celery
from pydantic import BaseModel

from celery_fence.locking.keys import key_rule, signature_of

app = Celery("keys", set_as_current=False)


class Order(BaseModel):
    id: int


def sync(tenant_id, full=False, *, region="eu"): ...


def rule(spec, function=sync, **options):
    return key_rule(spec, signature=signature_of(function, **options), task="billing.sync")


def key_of(value, template="item:<value>"):
    def task(value): ...

    return rule(template, task).render((value,), {})
