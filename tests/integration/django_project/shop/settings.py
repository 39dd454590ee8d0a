import json
import os

import pymysql

pymysql.install_as_MySQLdb()

SECRET_KEY = "for tests only"
INSTALLED_APPS = ["orders", "payouts"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["SHOP_DATABASE"],
        **json.loads(os.environ.get("SHOP_SERVER", "{}")),
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True

CELERY_BROKER_URL = os.environ.get("SHOP_BROKER", "memory://")
CELERY_RESULT_BACKEND = os.environ.get("SHOP_RESULTS", "cache+memory://")
CELERY_TASK_ALWAYS_EAGER = "SHOP_BROKER" not in os.environ

CELERY_FENCE_URL = os.environ.get("SHOP_LEASES", "memory://")
CELERY_FENCE_TTL = 12.5
CELERY_FENCE_PREFIX = "shop"
