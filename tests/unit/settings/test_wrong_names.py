"""What a setting with a wrong name says."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_fence.task.spelling import SYNONYMS
from tests.unit.settings.apps import app_with, error_of


class TestWrongNames:
    def test_a_misspelt_one_names_the_nearest(self):
        message = error_of(app_with(fence_tll=30))

        assert "no Celery setting 'fence_tll'" in message
        assert "Did you mean 'fence_ttl'?" in message

    def test_under_a_namespace_both_are_named_as_the_user_writes_them(self):
        app = Celery(set_as_current=False)
        app.config_from_object(
            {"CELERY_BROKER_URL": "redis://broker/0", "CELERY_FENCE_TLL": 30}, namespace="CELERY"
        )

        message = error_of(app)

        assert "'CELERY_FENCE_TLL'" in message
        assert "Did you mean 'CELERY_FENCE_TTL'?" in message

    @pytest.mark.parametrize(
        ("wrong", "right"),
        [("fence_timeout", "fence_ttl"), ("fence_lock_ttl", "fence_ttl"), ("fence_expiry", "fence_ttl")],
    )
    def test_the_words_of_other_libraries_are_understood(self, wrong, right):
        assert f"Did you mean {right!r}?" in error_of(app_with(**{wrong: 30}))

    @pytest.mark.parametrize(("wrong", "right"), SYNONYMS.items())
    def test_every_synonym_leads_to_a_setting(self, wrong, right):
        assert f"Did you mean {right!r}?" in error_of(app_with(**{wrong: 30}))

    def test_one_that_resembles_nothing_gets_the_whole_list(self):
        message = error_of(app_with(fence_zzzzzzzzzz=1))

        assert "fence_ttl" in message
        assert "fence_dead_letter_queue" in message

    def test_upper_case_without_a_namespace_would_never_be_read(self):
        message = error_of(app_with(FENCE_TTL=30))

        assert "'FENCE_TTL' is never read by Celery" in message
        assert "write it as 'fence_ttl'" in message

    def test_a_forgotten_namespace_is_told(self):
        app = Celery(set_as_current=False)
        app.config_from_object({"broker_url": "redis://broker/0", "CELERY_FENCE_TTL": 30})

        message = error_of(app)

        assert "'CELERY_FENCE_TTL' is never read by Celery" in message
        assert "namespace='CELERY'" in message
