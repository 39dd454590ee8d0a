from django.db import models


class Order(models.Model):
    state = models.CharField(max_length=20, default="open")
    token = models.BigIntegerField(null=True)

    def __str__(self):
        return f"order {self.pk}, {self.state}"
