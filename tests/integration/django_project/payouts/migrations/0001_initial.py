from django.db import migrations, models


class Migration(migrations.Migration):
    """From before there was a fence."""

    initial = True
    operations = [  # noqa: RUF012 - as Django writes it
        migrations.CreateModel(
            "Payout",
            [
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("state", models.CharField(max_length=20, default="open")),
            ],
        ),
        migrations.CreateModel(
            "Line",
            [
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("payout", models.ForeignKey("payouts.Payout", on_delete=models.CASCADE)),
            ],
        ),
    ]
