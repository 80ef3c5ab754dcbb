"""CPU normalization: how much faster a node's CPUs are than the cluster's measure (behaviour/manager 8).

On clusters of mixed CPU generations this makes "1 CPU" mean the same work everywhere. Pure: what a node's
annotation `cpu-normalization-ratio` should say, and when that is worth a write.
"""

from collections.abc import Callable, Mapping

from koordinator.api import node_labels, scalars, slo_config
from koordinator.api.annotations.node import CPU_BASIC_INFO, CPUBasicInfo
from koordinator.api.errors import ProtocolError
from koordinator.api.slo_config import CPUNormalizationConfig, CPUNormalizationStrategy, RatioModel
from koordinator.manager.config import node_entries
from koordinator.manager.config.node_entries import RatioSync, first_match

RATIO_MIN, RATIO_MAX = 1.0, 5.0
NO_NORMALIZATION = 1.0
REASON_UNREADABLE = "CPUNormalizationCfgUnmarshalFailed"

DEFAULT_CONFIG = CPUNormalizationConfig(enable=False)

_KEY = slo_config.CPU_NORMALIZATION.key


def sync(old: CPUNormalizationConfig, data: Mapping[str, str] | None) -> RatioSync[CPUNormalizationConfig]:
    """Return the next configuration from the ConfigMap's data (None: there is no ConfigMap)."""
    return node_entries.sync(slo_config.CPU_NORMALIZATION, DEFAULT_CONFIG, old, data)


def node_ratio(
    config: CPUNormalizationConfig,
    node: str,
    node_labels_: Mapping[str, str],
    cpu: Callable[[], CPUBasicInfo],
) -> float:
    """Return what the annotation of a node should say. `config` as `sync` gives it; `cpu` is asked only when the
    ratio depends on it.

    Raises: ProtocolError, also that of `cpu`, when the ratio cannot be told; the annotation then stays as it is.
    """
    strategy = first_match(config.node_configs, node_labels_) or config
    obj = f"Node {node}"
    switched = node_labels.is_cpu_normalization_enabled(node_labels_, obj)
    if not (strategy.enable if switched is None else switched):
        return NO_NORMALIZATION
    return checked(strategy_ratio(strategy, cpu(), obj), obj)


def strategy_ratio(strategy: CPUNormalizationStrategy, info: CPUBasicInfo, obj: str = "") -> float:
    """Return the ratio of the CPU's model, else the default one; not yet checked.

    Raises: ProtocolError when there is neither.
    """
    ratio = model_ratio(strategy.ratio_model, info)
    if ratio is None:
        ratio = strategy.default_ratio
    if ratio is None:
        reason = f"no ratio for CPU model {info.cpu_model!r} ({_features(info)}) and no defaultRatio"
        raise ProtocolError(obj, _KEY, reason)
    return ratio


def model_ratio(models: Mapping[str, RatioModel], info: CPUBasicInfo) -> float | None:
    """Return the ratio of exactly this model with these features, None when the table does not say."""
    model = models.get(info.cpu_model)
    if model is None:
        return None
    match info.hyper_thread_enabled, info.turbo_enabled:
        case True, True:
            return model.hyper_thread_turbo_enabled_ratio
        case True, False:
            return model.hyper_thread_enabled_ratio
        case False, True:
            return model.turbo_enabled_ratio
    return model.base_ratio


def checked(ratio: float, obj: str = "") -> float:
    """Return the ratio itself. Raises: ProtocolError when it is out of bounds."""
    if not RATIO_MIN <= ratio <= RATIO_MAX:
        raise ProtocolError(obj, _KEY, f"ratio {ratio:g} is not within {RATIO_MIN:g} to {RATIO_MAX:g}")
    return ratio


def needs_sync(old: str | None, new: str | None) -> bool:
    """Return whether the annotation's text must be written: it came, went, is malformed or really different."""
    have, wanted = _positive(old), _positive(new)
    if old is not None and have is None:
        return True
    if new is not None and wanted is None:
        return False
    if have is None or wanted is None:
        return (old is None) != (new is None)
    return node_labels.is_cpu_normalization_ratio_different(have, wanted)


def has_other_cpu(old: Mapping[str, str], new: Mapping[str, str]) -> bool:
    """Return whether a topology's annotations tell of another CPU, so that the node must be looked at again.

    A text that became malformed tells nothing new.
    """
    try:
        after = CPU_BASIC_INFO.read(new)
    except ProtocolError:
        return False
    try:
        before = CPU_BASIC_INFO.read(old)
    except ProtocolError:
        return True
    if before is None or after is None:
        return before is not after
    return _identity(before) != _identity(after)


def _identity(info: CPUBasicInfo) -> tuple[str, bool, bool]:
    return info.cpu_model, info.hyper_thread_enabled, info.turbo_enabled


def _features(info: CPUBasicInfo) -> str:
    threads = "with" if info.hyper_thread_enabled else "without"
    turbo = "with" if info.turbo_enabled else "without"
    return f"{threads} hyper-threads, {turbo} turbo"


def _positive(text: str | None) -> float | None:
    try:
        number = scalars.parse_float(text or "")
    except scalars.ScalarError:
        return None
    return number if number > 0 else None
