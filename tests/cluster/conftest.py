"""Fixtures of this room."""

import pytest

from koordinator.cluster import transport
from koordinator.cluster.backoff import BackoffPolicy


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client tries again at once."""
    monkeypatch.setattr(transport, "BACKOFF", BackoffPolicy(initial_s=0.01, max_s=0.02, jitter_ratio=0.1))
