from django.db import migrations

from celery_fence.fencing.django.operations import AddFencingColumns, CreateFenceGates, CreateFenceTrigger


class Migration(migrations.Migration):
    dependencies = [("payouts", "0001_initial")]  # noqa: RUF012 - as Django writes it
    operations = [  # noqa: RUF012 - as Django writes it
        CreateFenceGates(),
        AddFencingColumns("Payout"),
        CreateFenceTrigger("Payout"),
    ]
