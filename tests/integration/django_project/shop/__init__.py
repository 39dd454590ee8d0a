"""A Django project as Celery's manual shows it, with fenced tasks."""

from shop.celery import app as celery_app

__all__ = ["celery_app"]
