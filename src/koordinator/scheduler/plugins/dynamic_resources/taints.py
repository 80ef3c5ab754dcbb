"""Taints of devices: which devices a rule taints, which taints a request bears. Source: KEP-5055."""

from collections.abc import Iterable

from koordinator.api.dra import DeviceTaint, DeviceTaintRule, DeviceTaintSelector

_BLOCKING = ("NoSchedule", "NoExecute")
_ANY = DeviceTaintSelector()


def selects_pool(rule: DeviceTaintRule, pool: tuple[str, str]) -> bool:
    """Return whether a rule may be about devices of the pool (driver, pool)."""
    wanted = rule.spec.device_selector or _ANY
    return wanted.driver in (None, pool[0]) and wanted.pool in (None, pool[1])


def selects(rule: DeviceTaintRule, key: tuple[str, str, str]) -> bool:
    """Return whether a rule is about the device (driver, pool, device)."""
    wanted = rule.spec.device_selector or _ANY
    return selects_pool(rule, key[:2]) and wanted.device in (None, key[2])


def tolerates(tolerations: Iterable[tuple[str, str, str, str]], taint: DeviceTaint) -> bool:
    """Return whether a taint does not keep a request from a device.

    `tolerations`: (key, operator, value, effect); only the effects NoSchedule and NoExecute keep anybody from anything.
    """
    if taint.effect not in _BLOCKING:
        return True
    return any(
        (not effect or effect == taint.effect)
        and (not key or key == taint.key)
        and (operator == "Exists" or (bool(key) and value == taint.value))
        for key, operator, value, effect in tolerations
    )
