from celery import shared_task

from celery_fence import FencedTask
from orders.models import Order


@shared_task(base=FencedTask, lock_key="order:<order_id>")
def ship(order_id, *, fencing_token):
    Order.objects.filter(pk=order_id).update(state="shipped", token=fencing_token)


@shared_task(bind=True, base=FencedTask, lock_key="order:<order_id>")
def key_and_ttl(self, order_id):
    return [self.lease.key, self.lease.ttl]


@shared_task
def not_fenced():
    return "ran"
