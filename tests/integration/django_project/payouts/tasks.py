from celery import shared_task
from django.db import connection, transaction

from celery_fence import FencedTask
from celery_fence.fencing.gate import pass_gate
from celery_fence.fencing.trigger import fencing_columns
from payouts.models import Line, Payout


@shared_task(base=FencedTask, lock_key="payout:<payout_id>")
def pay(payout_id, *, fencing_token):
    with transaction.atomic():
        pass_gate(connection)
        Line.objects.create(payout_id=payout_id)
        Payout.objects.filter(pk=payout_id).update(state="paid", **fencing_columns())
    return fencing_token
