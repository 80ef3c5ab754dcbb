"""A busy machine is noticed before anything is measured on it."""

import pytest

from koordinator.node_demo.observe import trouble_of

QUIET = (100.0, 100.0, 0.0)


@pytest.mark.parametrize(
    ("busy_s", "idle_s", "stolen_s", "words"),
    [
        pytest.param(0.1, 3.9, 0.0, "", id="an idle machine"),
        pytest.param(0.38, 3.62, 0.0, "", id="not quite a tenth is no trouble"),
        pytest.param(2.0, 2.0, 0.0, "other processes use 1.0 of 2 CPUs", id="a process takes a CPU"),
        pytest.param(
            0.2, 2.8, 1.0, "other machines on the same host use 0.6 of 2 CPUs", id="a neighbour takes time"
        ),
    ],
)
def test_how_busy_is_too_busy(busy_s: float, idle_s: float, stolen_s: float, words: str) -> None:
    after = (QUIET[0] + busy_s, QUIET[1] + idle_s, QUIET[2] + stolen_s)

    trouble = trouble_of(QUIET, after, cpus=2)

    assert trouble.startswith(words) and bool(trouble) == bool(words)
