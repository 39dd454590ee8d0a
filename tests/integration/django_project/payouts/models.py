from django.db import models

from celery_fence.fencing.django.models import FencedModel


class Payout(FencedModel):
    state = models.CharField(max_length=20, default="open")

    def __str__(self):
        return f"payout {self.pk}, {self.state}"


class Line(models.Model):
    """What a payout's task inserts; the gate fences it."""

    payout = models.ForeignKey(Payout, on_delete=models.CASCADE)

    def __str__(self):
        return f"line of {self.payout_id}"
