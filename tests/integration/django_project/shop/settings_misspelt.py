from shop.settings import *  # noqa: F403 - the usual way to vary a settings module

CELERY_FENCE_TLL = 30
