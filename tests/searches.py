"""How long tests search at random: briefly in `make test`, ten times as long in `make test-slow`."""

import os

_TIMES = int(os.environ.get("KOORDINATOR_TEST_SEARCH", "1"))


def examples(count: int) -> int:
    """How many examples a search looks at that takes seconds."""
    return count * _TIMES
