"""Price models of cards that will be short: others can have what they ask for only there.

The load of a model is what is asked for of it, divided by what is free; pods that take several models are spread so
that loads are as equal as they can be. Where loads still differ, pods that have a choice go where the load is low.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from koordinator.scheduler.plugins.fragmentation.card_values import F64
from koordinator.scheduler.plugins.fragmentation.demand import Models

WEIGHT = 2.0
"""Price of a card per unit of ln(load / lowest load), in cards."""
_ROUNDS = 300
_TINY = 1e-9


def loads(by_models: Mapping[Models, float], model_names: Sequence[str], free: F64) -> F64:
    """Return the load of each model, (models,), up to a factor. `free` (models,) is the GPU that is left; `by_models`
    as in `Target`."""
    asked = [(_mask(models, model_names), amount) for models, amount in by_models.items()]
    takes = np.array([mask for mask, _ in asked], np.float64).reshape(len(asked), len(model_names))
    amounts = np.array([amount for _, amount in asked])
    parts = takes * np.maximum(free, _TINY)
    parts /= np.maximum(parts.sum(axis=1, keepdims=True), _TINY)
    load = np.zeros(len(model_names))
    for _ in range(_ROUNDS):
        load = amounts @ parts / np.maximum(free, _TINY)
        parts /= np.sqrt(load + _TINY)
        parts /= np.maximum(parts.sum(axis=1, keepdims=True), _TINY)
    return load


def _mask(models: Models, model_names: Sequence[str]) -> list[bool]:
    return [models is None or name in models for name in model_names]


def prices(by_models: Mapping[Models, float], model_names: Sequence[str], free: F64) -> F64:
    """Return the price of a percent of each model's cards, in percent: (models + 1,), the last for nodes that name no
    model. Models of which nothing is left have none."""
    found = np.zeros(len(model_names) + 1)
    has = free > 0
    if not by_models or not has.any():
        return found
    load = loads(by_models, model_names, free)[has]
    found[:-1][has] = WEIGHT * np.log((load + _TINY) / (load.min() + _TINY))
    return found
