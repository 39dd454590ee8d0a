"""Apps by their settings, and the errors that these lead to."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_fence.errors import ConfigError
from celery_fence.task.settings import FenceSettings


def app_with(**settings):
    app = Celery("shop", broker="redis://broker/0", set_as_current=False)
    app.conf.update(settings)
    return app


def error_of(app):
    with pytest.raises(ConfigError) as caught:
        FenceSettings.of(app)
    return str(caught.value)
