"""Set the share of batch by the slack of services: less at once when they are degraded, more slowly while all is well.

One step of all nodes, elementwise, so an agent is a fleet of one. In order of severity: growth is held, batch is shrunk
on the resource that services lack, the named culprit is capped, then evicted with a hint to move; the scheduler
and the descheduler read a level that decays. Without a fresh measurement the ceiling is the fixed threshold.

The ceiling is found by bisection: levels that degraded services are remembered, and none in between is tried twice, so
under constant load it comes to rest instead of probing for ever. Such levels count no longer once services use
clearly less, and at the latest after a time that doubles whenever that was in vain. Slack that holds growth and slack
that shrinks differ (a band), so small errors of measurement move nothing; nor does one look at an objective that is
missed by little. Batch loses in proportion to the miss, grows the sooner the more slack there is, and gets back what it
lost for nothing (`trials`).

Sources: Lo et al., *Heracles: Improving Resource Efficiency at Scale* (ISCA 2015), section 4 (slack decides about
growth, no slack stops batch); Zhang et al., *CPI²* (EuroSys 2013), section 5 (cap the named antagonist before it is
moved).
"""

import enum
import functools
from typing import Annotated

import msgspec
import numpy as np

from koordinator.koordlet.interference import trials
from koordinator.koordlet.interference.trials import F64, Index, Look, Mask, Trials, some

_Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]
_Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Seconds = Annotated[float, msgspec.Meta(ge=0)]

FULL_PERCENT = 100.0
FORGET_S_MAX = 86_400.0
"""The longest that a level counts as harmful without a new reason."""
ELAPSED_S_MAX = 5.0
"""An agent that stood still does not make up for it: growth is by what was watched."""


class Resource(enum.IntEnum):
    """Resources that services and batch compete for: columns of ceilings."""

    CPU = 0
    CACHE = 1  # and memory bandwidth
    MEMORY = 2
    DISK = 3
    NETWORK = 4


class Source(enum.IntEnum):
    """The measurements by which the ceiling of a node is decided."""

    FIXED = 0  # nothing fresh is known: the fixed threshold
    PRESSURE = 1
    LATENCY = 2


class Stage(enum.IntEnum):
    """The severity of what the controller does on a node."""

    GROW = 0
    HOLD = 1
    SHRINK = 2
    CAP = 3
    EVICT = 4


class ControlConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Settings of the controller. Slack is (target − latency) ÷ target: 1 is idle, below 0 the objective is missed.

    Raises: ValueError (ValidationError when decoded) where bounds contradict each other.
    """

    slack_low_ratio: _Ratio = 0.10
    """Below it, batch shrinks."""
    slack_high_ratio: _Ratio = 0.15
    """Above it, batch grows; in between nothing moves."""
    threshold_min_percent: _Percent = 10.0
    """CPU of services and batch together, in percent of the node: what the ceiling never falls below …"""
    threshold_max_percent: _Percent = 95.0
    """… nor rises above."""
    fixed_percent: _Percent = 65.0
    """The ceiling while nothing fresh was measured: `cpuSuppressThresholdPercent`."""
    resource_min_percent: _Percent = 10.0
    """The least that batch keeps of other resources than CPU."""
    shrink_ratio: _Ratio = 0.5
    """Share of batch that one step leaves while an objective is just met, less of a missed one …"""
    miss_ratio: Annotated[float, msgspec.Meta(gt=0)] = 0.5
    """… down to the least where latency is above the target by this share of it."""
    confirm_miss_ratio: _Ratio = 0.25
    """A miss up to this must be seen …"""
    confirm_seconds: _Seconds = 2.0
    """… for so long before batch loses anything: a percentile of one second means little."""
    stolen_percent: Annotated[float, msgspec.Meta(gt=0)] = 2.0
    """Share of CPU time taken by a hypervisor from which on any miss, which may be its doing, must be seen …"""
    confirm_stolen_seconds: _Seconds = 10.0
    """… for so long: CPUs that batch leaves idle are what it takes next."""
    growth_percent_per_second: _Percent = 2.0
    hold_seconds: _Seconds = 30.0
    """No growth for so long after services were degraded, with just enough slack; with more in proportion …"""
    hold_seconds_min: _Seconds = 7.5
    """… shorter, down to this."""
    settle_seconds: _Seconds = 20.0
    """A level counts as harmless when services had slack at it for so long: longer than any measurement is late."""
    resolution_percent: _Percent = 2.0
    """Resolution with which the harmless level is searched."""
    stale_seconds: _Seconds = 10.0
    load_change_percent: _Percent = 5.0
    """Drop in the services' use of the node after which harmful levels are searched anew …"""
    forget_seconds: _Seconds = 1_800.0
    """… or after so long, twice as long each time that it is for nothing."""
    cap_after_seconds: _Seconds = 3.0
    """A named culprit is capped when services are degraded for so long …"""
    evict_after_seconds: _Seconds = 30.0
    """… and evicted after so long, if shrinking and capping did not help."""
    evict_rest_seconds: _Seconds = 60.0
    evictions_max: Annotated[int, msgspec.Meta(ge=0)] = 2
    """Evictions after which nobody else goes until services were well: who was named was not it."""
    signal_rise_seconds: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    """The level that schedulers see rises to 63 % in so many seconds of degradation …"""
    signal_half_life_seconds: Annotated[float, msgspec.Meta(gt=0)] = 600.0
    """… and halves in so many without."""

    def __post_init__(self) -> None:
        if self.slack_low_ratio > self.slack_high_ratio:
            raise ValueError("slackLowRatio is above slackHighRatio: batch would grow and shrink at once")
        if self.threshold_min_percent > self.threshold_max_percent:
            raise ValueError("thresholdMinPercent is above thresholdMaxPercent")


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of each node, all (nodes,)."""

    slack: F64
    """Slack of the service that is worst off, 1 or less; NaN where none has an objective."""
    slack_age_s: F64
    present_slack: F64
    """The same without what came before this second, at least `slack`; NaN where that is not told apart."""
    pressure_slack: F64
    """1 − stall (PSI) or CPI above its limit, of services without a latency; NaN where neither is known."""
    pressure_age_s: F64
    resource: Index
    """The resource that services lack (`Resource`), CPU where that is not known."""
    has_culprit: Mask
    """True where a batch pod is named as the cause, surely enough to act on it."""
    victim: Index
    """Any number that stands for the service that is worst off."""
    others_percent: F64
    """CPU of services and system, in percent of the node."""
    batch_percent: F64
    """CPU of batch, in percent of the node."""
    stolen_percent: F64 | float = 0.0
    """CPU that a hypervisor gave to others, in percent of the node."""


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of a controller; (nodes, resources) in percent or seconds, or (nodes,)."""

    ceiling: F64
    good: F64
    """The highest level at which services had slack, as far as known …"""
    bad: F64
    """… and the lowest at which they were degraded; infinite where unknown."""
    still_s: F64
    """Since when the ceiling has not moved."""
    was_shrunk: Mask
    others_at_bad: F64
    bad_age_s: F64
    forget_s: F64
    calm_s: F64
    """Since services were degraded last."""
    degraded_s: F64
    culprit_percent: F64
    since_eviction_s: F64
    evictions: Index
    signal: F64
    trials: Trials


class Actions(msgspec.Struct, frozen=True, kw_only=True):
    """The actions on each node now."""

    ceiling_percent: F64
    """(nodes, resources). CPU: services and batch together use at most this; others: batch has at most this of them."""
    stage: Index
    source: Index
    slack: F64
    """Slack that the decision used; NaN without a fresh measurement."""
    culprit_percent: F64
    """The culprit may use at most this share of what it used; 100 leaves it alone."""
    evict: Mask
    """The culprit goes, with a hint that another node may suit it."""
    signal: F64
    """Recent degradation of services, 0–1: for schedulers and deschedulers."""


def initial(nodes: int, config: ControlConfig) -> State:
    """Return the state at the start: the fixed threshold, nothing known to be good or bad."""
    least, _ = _bounds(config)
    return State(
        ceiling=np.tile(_fixed(config), (nodes, 1)),
        good=np.tile(least, (nodes, 1)),
        bad=np.full((nodes, len(Resource)), np.inf),
        still_s=np.zeros((nodes, len(Resource))),
        was_shrunk=np.zeros((nodes, len(Resource)), np.bool_),
        others_at_bad=np.zeros(nodes),
        bad_age_s=np.zeros(nodes),
        forget_s=np.full(nodes, config.forget_seconds),
        calm_s=np.full(nodes, config.hold_seconds),
        degraded_s=np.zeros(nodes),
        culprit_percent=np.full(nodes, FULL_PERCENT),
        since_eviction_s=np.full(nodes, config.evict_rest_seconds),
        evictions=np.zeros(nodes, np.int64),
        signal=np.zeros(nodes),
        trials=trials.initial(nodes, len(Resource), config.forget_seconds),
    )


def fresh_slack(inputs: Inputs, config: ControlConfig) -> tuple[F64, F64, Index]:
    """Return the least slack by fresh measurements, NaN without any, that of this second, and the source; (nodes,) all.

    A miss that is over takes no more from batch, however long a window remembers it.
    """
    slack = np.where(inputs.slack_age_s <= config.stale_seconds, inputs.slack, np.nan)
    is_heard = ~np.isnan(slack)
    present = np.where(is_heard, np.fmax(inputs.present_slack, slack), np.nan)
    is_pressed = inputs.pressure_age_s <= config.stale_seconds
    if not some(is_pressed):
        return slack, present, is_heard * np.int64(Source.LATENCY)
    pressure = np.where(is_pressed, inputs.pressure_slack, np.nan)
    least = np.fmin(slack, pressure)
    source = np.where(~is_heard | (pressure < slack), Source.PRESSURE, Source.LATENCY)
    source = np.where(np.isnan(least), Source.FIXED, source).astype(np.int64)
    return least, np.fmin(present, pressure), source


def step(state: State, inputs: Inputs, elapsed_s: float, config: ControlConfig) -> tuple[State, Actions]:
    """Return the next state of all nodes and what to do on each, `elapsed_s` seconds after the last step."""
    after, felt, evict = _advanced(state, inputs, elapsed_s, config)
    acts = felt.shrinks.any(axis=1)
    stage = np.where(felt.may_grow | felt.is_left_out.any(axis=1), Stage.GROW, Stage.HOLD)
    stage = np.where(acts, Stage.SHRINK, stage)
    stage = np.where(acts & (after.culprit_percent < FULL_PERCENT), Stage.CAP, stage)
    stage = np.where(evict, Stage.EVICT, stage).astype(np.int64)
    return after, Actions(
        ceiling_percent=after.ceiling,
        stage=stage,
        source=felt.source,
        slack=felt.slack,
        culprit_percent=after.culprit_percent,
        evict=evict,
        signal=after.signal,
    )


def advance(state: State, inputs: Inputs, elapsed_s: float, config: ControlConfig) -> State:
    """Return the next state alone, as `step` does: for whoever follows many steps and reads the ceilings."""
    return _advanced(state, inputs, elapsed_s, config)[0]


def _advanced(
    state: State, inputs: Inputs, elapsed_s: float, config: ControlConfig
) -> tuple[State, "_Felt", Mask]:
    """Return the next state, what led to it, and whose culprit is evicted.

    A fleet takes many steps in which no node is degraded, grows or is blind: what nobody needs is not worked out.
    """
    watched_s = min(elapsed_s, ELAPSED_S_MAX)
    felt = _felt(state, inputs, watched_s, config)
    state = _forget(state, inputs, elapsed_s, config)
    state, ceiling = _ceilings(state, inputs, felt, watched_s, config)
    still_s = state.still_s + watched_s
    if ceiling is not state.ceiling:
        still_s = np.where(ceiling == state.ceiling, still_s, 0.0)
    is_proven = (felt.known & ~felt.is_degraded)[:, None] & (still_s >= config.settle_seconds)
    culprit_percent = _culprit_percent(state, inputs, felt, watched_s, config)
    evict = _evicts(state, inputs, ceiling, felt.degraded_s, watched_s, config)
    is_well = felt.calm_s >= config.hold_seconds
    look = Look(
        slack=felt.slack,
        is_degraded=felt.is_degraded,
        is_well=is_well,
        has_least=felt.shrinks & (ceiling <= _bounds(config)[0]) if felt.some_degraded else felt.shrinks,
        has_culprit=inputs.has_culprit,
        victim=inputs.victim,
    )
    tried = trials.follow(
        state.trials, felt.is_left_out, look, watched_s, config.settle_seconds, config.forget_seconds
    )
    since_eviction_s, evictions = state.since_eviction_s + watched_s, state.evictions
    if some(evict):
        since_eviction_s, evictions = np.where(evict, 0.0, since_eviction_s), evictions + evict
    after = msgspec.structs.replace(
        state,
        ceiling=ceiling,
        good=np.where(is_proven, np.maximum(state.good, ceiling), state.good),
        bad=np.where(tried.left_out_s > 0, np.inf, state.bad) if some(tried.left_out_s) else state.bad,
        still_s=still_s,
        was_shrunk=felt.shrinks,
        calm_s=felt.calm_s,
        degraded_s=felt.degraded_s,
        culprit_percent=culprit_percent,
        since_eviction_s=since_eviction_s,
        evictions=np.where(is_well, 0, evictions) if some(evictions) else evictions,
        signal=_signal(state.signal, felt, elapsed_s, config),
        trials=tried,
    )
    return after, felt, evict


class _Felt(msgspec.Struct, frozen=True, kw_only=True):
    """The slack that services have, and what follows for ceilings; (nodes,), masks of ceilings (nodes, resources)."""

    slack: F64
    source: Index
    present: F64
    known: Mask
    is_degraded: Mask
    some_degraded: bool
    calm_s: F64
    degraded_s: F64
    may_grow: Mask
    shrinks: Mask
    is_left_out: Mask


def _felt(state: State, inputs: Inputs, watched_s: float, config: ControlConfig) -> _Felt:
    slack, present, source = fresh_slack(inputs, config)
    known = source != Source.FIXED
    is_degraded = present < config.slack_low_ratio  # NaN is not
    some_degraded = some(is_degraded)
    calm_s, degraded_s = state.calm_s + watched_s, np.zeros(slack.size)
    if some_degraded:
        calm_s = np.where(is_degraded, 0.0, calm_s)
        degraded_s = np.where(is_degraded, state.degraded_s + watched_s, 0.0)
    enough = max(config.slack_high_ratio, 1e-9)
    least_s = min(config.hold_seconds_min, config.hold_seconds)
    hold_s = np.maximum(config.hold_seconds * enough / np.maximum(slack, enough), least_s)
    is_left_out = trials.left_out(state.trials, inputs.has_culprit, inputs.victim)
    if some(is_left_out):
        is_left_out &= known[:, None]
    shrinks = np.zeros(is_left_out.shape, np.bool_)
    if some_degraded:
        own_s = np.where(present < -config.confirm_miss_ratio, 0.0, config.confirm_seconds)
        is_stolen = inputs.stolen_percent >= config.stolen_percent
        confirm_s = np.where(is_stolen, config.confirm_stolen_seconds, own_s)
        is_sure = is_degraded & (degraded_s >= confirm_s)
        is_lacking = inputs.resource[:, None] == np.arange(len(Resource))
        shrinks = is_sure[:, None] & is_lacking & ~is_left_out
    return _Felt(
        slack=slack,
        present=present,
        source=source,
        known=known,
        is_degraded=is_degraded,
        some_degraded=some_degraded,
        calm_s=calm_s,
        degraded_s=degraded_s,
        may_grow=(slack > config.slack_high_ratio) & (calm_s >= hold_s),
        shrinks=shrinks,
        is_left_out=is_left_out,
    )


def _ceilings(
    state: State, inputs: Inputs, felt: _Felt, watched_s: float, config: ControlConfig
) -> tuple[State, F64]:
    """Return the ceilings of all resources, and the state with what is known of levels now."""
    ceiling = state.ceiling
    grows = felt.may_grow[:, None] | felt.is_left_out
    if felt.some_degraded and some(felt.shrinks):
        used = np.minimum(state.ceiling, _used(inputs))
        state = _mark(state, inputs, felt.shrinks, used, config)
        shrunk = _shrunk(used, inputs, felt.present, config)
        ceiling = np.where(felt.shrinks, np.minimum(shrunk, state.ceiling), ceiling)
    if some(grows):
        ceiling = np.where(grows, _grown(state, watched_s, config), ceiling)
    if not felt.known.all():
        # Without a measurement: down to the fixed threshold at once, up to it slowly.
        risen = state.ceiling + config.growth_percent_per_second * watched_s
        ceiling = np.where(felt.known[:, None], ceiling, np.minimum(risen, _fixed(config)))
    return state, ceiling


@functools.cache
def _bounds(config: ControlConfig) -> tuple[F64, F64]:
    """Least and highest ceiling of each resource, (resources,)."""
    least = np.full(len(Resource), config.resource_min_percent)
    most = np.full(len(Resource), FULL_PERCENT)
    least[Resource.CPU], most[Resource.CPU] = config.threshold_min_percent, config.threshold_max_percent
    for bound in (least, most):
        bound.flags.writeable = False  # they are kept
    return least, most


@functools.cache
def _fixed(config: ControlConfig) -> F64:
    """Return the ceilings of resources without a measurement, (resources,)."""
    least, most = _bounds(config)
    fixed = np.full(len(Resource), FULL_PERCENT)
    fixed[Resource.CPU] = np.clip(config.fixed_percent, least[Resource.CPU], most[Resource.CPU])
    fixed.flags.writeable = False
    return fixed


def _used(inputs: Inputs) -> F64:
    """Return what is used, (nodes, resources): a higher ceiling did nothing. Known of CPU only."""
    used = np.full((inputs.slack.size, len(Resource)), np.inf)
    used[:, Resource.CPU] = inputs.others_percent + inputs.batch_percent
    return used


def _forget(state: State, inputs: Inputs, elapsed_s: float, config: ControlConfig) -> State:
    """Let go of harmful levels that say nothing any more."""
    is_harmful = np.isfinite(state.bad)
    if not some(is_harmful):
        return msgspec.structs.replace(state, bad_age_s=np.zeros(state.bad_age_s.size))
    is_marked = is_harmful.any(axis=1)
    bad_age_s = np.where(is_marked, state.bad_age_s + elapsed_s, 0.0)
    is_lighter = is_marked & (inputs.others_percent <= state.others_at_bad - config.load_change_percent)
    is_old = is_marked & ~is_lighter & (bad_age_s >= state.forget_s)
    if not (some(is_lighter) or some(is_old)):
        return msgspec.structs.replace(state, bad_age_s=bad_age_s)
    forget_s = np.where(is_old, np.minimum(2 * state.forget_s, FORGET_S_MAX), state.forget_s)
    return msgspec.structs.replace(
        state,
        bad=np.where((is_lighter | is_old)[:, None], np.inf, state.bad),
        bad_age_s=bad_age_s,
        forget_s=np.where(is_lighter, config.forget_seconds, forget_s),
    )


def _mark(state: State, inputs: Inputs, shrinks: Mask, used: F64, config: ControlConfig) -> State:
    """Remember where degradation began; a level that was harmless before is so no longer."""
    begins = shrinks & ~state.was_shrunk
    least, most = _bounds(config)
    bad = np.where(begins, np.minimum(state.bad, np.clip(used, least, most)), state.bad)
    begins_any = begins.any(axis=1)
    return msgspec.structs.replace(
        state,
        bad=bad,
        good=np.where(begins & (state.good >= bad), least, state.good),
        others_at_bad=np.where(begins_any, inputs.others_percent, state.others_at_bad),
        bad_age_s=np.where(begins_any, 0.0, state.bad_age_s),
    )


def _shrunk(used: F64, inputs: Inputs, slack: F64, config: ControlConfig) -> F64:
    """Ceilings that leave batch `shrink_ratio` of what it has, less the more an objective is missed."""
    least, _ = _bounds(config)
    kept = config.shrink_ratio * np.clip(1 + slack / config.miss_ratio, 0.0, 1.0)
    others = np.zeros_like(used)
    others[:, Resource.CPU] = inputs.others_percent
    batch = np.maximum(used - others, 0.0) * kept[:, None]
    return np.where(batch < config.resolution_percent, least, np.maximum(others + batch, least))


def _grown(state: State, elapsed_s: float, config: ControlConfig) -> F64:
    """Ceilings one step further: to the top, or half-way between what is known as good and as bad."""
    is_wide = state.bad - state.good > config.resolution_percent
    half_way = np.where(is_wide, (state.good + state.bad) / 2, state.good)
    goal = np.where(np.isinf(state.bad), _bounds(config)[1], half_way)
    step_percent = config.growth_percent_per_second * elapsed_s
    return np.maximum(state.ceiling, np.minimum(state.ceiling + step_percent, goal))


def _culprit_percent(
    state: State, inputs: Inputs, felt: _Felt, elapsed_s: float, config: ControlConfig
) -> F64:
    if not some(inputs.has_culprit) and (state.culprit_percent >= FULL_PERCENT).all():
        return state.culprit_percent
    is_capped = inputs.has_culprit & (felt.degraded_s >= config.cap_after_seconds) & (felt.degraded_s > 0)
    capped = np.maximum(state.culprit_percent * config.shrink_ratio, config.resource_min_percent)
    grown = np.minimum(state.culprit_percent + config.growth_percent_per_second * elapsed_s, FULL_PERCENT)
    return np.where(is_capped, capped, np.where(felt.may_grow | ~felt.known, grown, state.culprit_percent))


def _evicts(
    state: State, inputs: Inputs, ceiling: F64, degraded_s: F64, watched_s: float, config: ControlConfig
) -> Mask:
    """Return whether a named culprit goes: batch has the least already, and services are degraded all the same."""
    if not some(inputs.has_culprit):
        return inputs.has_culprit
    is_least = np.take_along_axis(ceiling <= _bounds(config)[0], inputs.resource[:, None], axis=1)[:, 0]
    found: Mask = (
        inputs.has_culprit
        & (degraded_s >= config.evict_after_seconds)
        & is_least
        & (state.since_eviction_s + watched_s >= config.evict_rest_seconds)
        & (state.evictions < config.evictions_max)
    )
    return found


def _signal(signal: F64, felt: _Felt, elapsed_s: float, config: ControlConfig) -> F64:
    fallen: F64 = signal * 0.5 ** (elapsed_s / config.signal_half_life_seconds)
    if not felt.some_degraded:
        return fallen
    risen = 1 - (1 - signal) * np.exp(-elapsed_s / config.signal_rise_seconds)
    return np.where(felt.is_degraded, risen, fallen)
