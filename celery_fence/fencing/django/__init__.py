"""
Fencing with Django's ORM.

The scope gate takes Django's connection as it is; inside a fenced task:

```python
with transaction.atomic():
    pass_gate(connection)
    Order.objects.filter(pk=order_id).update(state="shipped")
```

So do the records of finished work (`celery_fence.fencing.idempotency`). `operations` has what
makes the tables of both, and the fence trigger, in a migration; `models` has an
abstract model with the columns that the trigger wants. Both are imported by that name:
`models` can't be before Django's apps are loaded.
"""
