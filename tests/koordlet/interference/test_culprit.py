"""Naming a culprit: the one whose use rises with the degradation, nobody when that is not sure."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.koordlet.degradation import Contended
from koordinator.koordlet.interference import culprit
from koordinator.koordlet.interference.culprit import F64, RESOURCES, UNITS

CPU, DISK = RESOURCES.index(Contended.CPU), RESOURCES.index(Contended.DISK)
CALM, DEGRADED = 20, 4
CANDIDATES = 6
SEEDS = st.integers(0, 10_000)


def levels(seed: int, degraded: int = DEGRADED) -> F64:
    rng = np.random.default_rng(seed)
    calm = rng.uniform(0.1, 0.6, CALM)
    return np.concatenate([calm, rng.uniform(1.5, 8.0, degraded)])


def innocents(seed: int, seconds: int = CALM + DEGRADED) -> F64:
    """Constant, random, bursty and idle users."""
    rng = np.random.default_rng(seed)
    use = np.zeros((seconds, CANDIDATES, len(RESOURCES)))
    use[:, 0, CPU] = 0.5
    use[:, 1, CPU] = rng.uniform(0, 0.2, seconds)
    use[:, 2, CPU] = (rng.random(seconds) < 0.3) * 0.3
    use[:, 3, DISK] = rng.uniform(0, 3 * 2**20, seconds)
    return use


@given(seed=SEEDS, who=st.integers(0, CANDIDATES - 1))
def test_an_antagonist_is_named_with_what_it_takes(seed: int, who: int) -> None:
    use = innocents(seed)
    use[-DEGRADED:, who, CPU] += 1.7

    found = culprit.name(levels(seed), use)

    assert found is not None
    assert (found.candidate, found.resource) == (who, Contended.CPU)
    assert found.confidence >= max(culprit.CONFIDENCE_MIN, found.runner_up + culprit.MARGIN_MIN)


@given(seed=SEEDS)
def test_nobody_is_named_when_nobody_uses_more(seed: int) -> None:
    use = innocents(seed)
    use[:, 1:4] = 0.0

    assert culprit.name(levels(seed), use) is None


@given(seed=SEEDS, first=st.integers(0, 2), second=st.integers(3, 5))
def test_nobody_is_named_when_two_come_at_once(seed: int, first: int, second: int) -> None:
    use = innocents(seed)
    use[-DEGRADED:, (first, second), CPU] += 1.0

    assert culprit.name(levels(seed), use) is None


@given(seed=SEEDS, factor=st.floats(1e-3, 1e3))
def test_units_of_use_do_not_matter(seed: int, factor: float) -> None:
    use = innocents(seed)
    use[-DEGRADED:, 4, CPU] += 1.0
    level = levels(seed)

    plain = culprit.name(level, use)
    scaled = culprit.name(level, use * factor, units={each: unit * factor for each, unit in UNITS.items()})

    assert plain is not None
    assert scaled is not None
    assert (plain.candidate, plain.resource) == (scaled.candidate, scaled.resource)
    assert scaled.confidence == pytest.approx(plain.confidence)


@given(seed=SEEDS)
def test_the_order_of_candidates_does_not_matter(seed: int) -> None:
    use = innocents(seed)
    use[-DEGRADED:, 4, CPU] += 1.0
    order = np.random.default_rng(seed).permutation(CANDIDATES)

    found = culprit.name(levels(seed), use[:, order])

    assert found is not None
    assert order[found.candidate] == 4


def test_who_always_used_much_is_not_to_blame_for_a_load_of_the_service_itself() -> None:
    use = innocents(1)
    use[:, 4, CPU] = 1.5
    use[-DEGRADED:, 4, CPU] = 0.9  # the service takes it

    assert culprit.name(levels(1), use) is None


@given(seed=SEEDS, rise=st.floats(0.2, 0.6))
def test_a_service_that_has_more_to_do_itself_accuses_nobody_whose_use_happens_to_rise(
    seed: int, rise: float
) -> None:
    use = innocents(seed)
    use[:, 1:4] = 0.0
    use[-DEGRADED:, 5, CPU] += rise
    own = np.full(CALM + DEGRADED, 0.7)
    assert culprit.name(levels(seed), use, own) is not None, "alone that would be enough"

    own[-DEGRADED:] += 2 * rise

    assert culprit.name(levels(seed), use, own) is None


@given(seed=SEEDS, who=st.integers(0, CANDIDATES - 1))
def test_an_antagonist_is_named_though_what_it_makes_slow_needs_more_cpu_for_the_same(
    seed: int, who: int
) -> None:
    use = innocents(seed)
    use[-DEGRADED:, who, CPU] += 1.7
    own = np.full(CALM + DEGRADED, 0.7)
    own[-DEGRADED:] *= 1.3

    found = culprit.name(levels(seed), use, own)

    assert found is not None and found.candidate == who


def test_one_bad_second_or_no_calm_ones_are_not_enough() -> None:
    use = np.zeros((CALM + DEGRADED, 1, len(RESOURCES)))
    use[-DEGRADED:, 0, CPU] = 2.0
    one_bad = np.full(CALM + DEGRADED, 0.2)
    one_bad[-1] = 4.0

    assert culprit.name(one_bad, use) is None
    assert culprit.name(np.full(CALM + DEGRADED, 4.0), use) is None
    assert culprit.name(np.full(CALM + DEGRADED, np.nan), use) is None


def test_a_disk_hog_is_named_for_the_disk_though_it_uses_cpu_too() -> None:
    use = innocents(3)
    use[-DEGRADED:, 5, CPU] += 0.4
    use[-DEGRADED:, 5, DISK] += 300 * 2**20

    found = culprit.name(levels(3), use)

    assert found is not None
    assert (found.candidate, found.resource) == (5, Contended.DISK)


def test_without_candidates_nobody_is_named() -> None:
    assert culprit.name(levels(1), np.zeros((CALM + DEGRADED, 0, len(RESOURCES)))) is None


@pytest.mark.parametrize(
    ("resource", "unit"),
    [
        (Contended.CPU, 0.1),
        (Contended.MEMORY, 32 * 2**20),
        (Contended.CACHE, 50e6),
        (Contended.DISK, 2**20),
        (Contended.NETWORK, 2**20),
    ],
)
def test_an_increase_counts_from_one_unit_on(resource: Contended, unit: float) -> None:
    def named(rise: float) -> bool:
        use = np.zeros((CALM + DEGRADED, CANDIDATES, len(RESOURCES)))
        use[-DEGRADED:, 2, RESOURCES.index(resource)] = rise
        return culprit.name(levels(1), use) is not None

    assert named(1.01 * unit)
    assert not named(0.99 * unit)


def test_a_service_at_its_mark_is_degraded() -> None:
    level = np.full(CALM + DEGRADED, 0.3)
    level[-DEGRADED:] = 1.0
    use = np.zeros((CALM + DEGRADED, CANDIDATES, len(RESOURCES)))
    use[-DEGRADED:, 3, CPU] = 1.0

    found = culprit.name(level, use)

    assert found is not None and found.candidate == 3


def test_seconds_that_nobody_measured_do_not_keep_from_naming() -> None:
    level = levels(1)
    level[[2, CALM - 1, CALM + 1]] = np.nan
    use = innocents(1)
    use[-DEGRADED:, 4, CPU] += 1.7

    found = culprit.name(level, use)

    assert found is not None and found.candidate == 4


def test_the_seconds_of_an_episode_weigh_as_much_as_the_calm_ones() -> None:
    found = culprit.weights(np.array([0.2] * 6 + [2.0] * 3))

    assert found is not None
    assert found.tolist() == pytest.approx([0.5 / 6] * 6 + [0.5 / 3] * 3)


def test_two_degraded_and_four_calm_seconds_are_enough() -> None:
    assert culprit.weights(np.array([0.2] * 4 + [2.0] * 2)) is not None
    assert culprit.weights(np.array([0.2] * 3 + [2.0] * 2)) is None
    assert culprit.weights(np.array([0.2] * 4 + [2.0])) is None


def test_an_episode_ends_with_three_calm_seconds() -> None:
    calm, before, now = [0.2] * 4, [3.0] * 2, [2.0] * 2

    after_two = culprit.weights(np.array([*calm, *before, *[0.2] * 2, *now]))
    after_three = culprit.weights(np.array([*calm, *before, *[0.2] * 3, *now]))

    assert after_two is not None and after_two[4:6].tolist() == [0.125, 0.125]
    assert after_three is not None and after_three[4:6].tolist() == [0.0, 0.0]


def test_of_long_stretches_the_newest_half_minute_counts() -> None:
    found = culprit.weights(np.array([0.2] * 40 + [2.0] * 35))

    assert found is not None
    assert np.flatnonzero(found).tolist() == [*range(10, 40), *range(45, 75)]
