"""Whether the scheduler is alive and ready, check by check, in the words of upstream's endpoints."""

from collections.abc import Callable, Iterable, Mapping

import msgspec

Check = Callable[[], str]
"""Why it is not well; empty when it is."""


class Report(msgspec.Struct, frozen=True):
    """The answer of a health endpoint."""

    is_well: bool
    text: str


def report(name: str, checks: Mapping[str, Check], *, verbose: bool, excluded: Iterable[str] = ()) -> Report:
    """The checks of an endpoint (`healthz`, `livez`, `readyz`) in order; reasons are shown when one fails."""
    left_out = set(excluded)
    lines = []
    is_well = True
    for check, why in checks.items():
        if check in left_out:
            lines.append(f"[+]{check} excluded: ok")
            continue
        reason = why()
        is_well = is_well and not reason
        lines.append(f"[-]{check} failed: {reason}" if reason else f"[+]{check} ok")
    unknown = sorted(left_out - checks.keys())
    if unknown:
        named = ", ".join(f'"{each}"' for each in unknown)
        lines.append(f"warn: some health checks cannot be excluded: no matches for {named}")
    if is_well and not verbose:
        return Report(True, "ok")
    lines.append(f"{name} check {'passed' if is_well else 'failed'}")
    return Report(is_well, "\n".join(lines) + "\n")


def well() -> str:
    """The check of a process that answers."""
    return ""
