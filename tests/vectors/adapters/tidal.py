"""Area `tidal-plan`."""

from typing import Any

import msgspec

from koordinator.manager.tidal.target import PoolFacts, PoolShare, Window, reserves, target

Case = dict[str, Any]


def _share(case: Case, field: str) -> PoolShare:
    return PoolShare.of(case.get(field, 0), field)


def tidal_plan(case: Case) -> Any:
    online, batch = _share(case, "onlineReserve"), _share(case, "batchReserve")
    if case["op"] == "reserves":
        return msgspec.to_builtins(reserves(case["members"], online, batch))
    windows = [
        Window(-each.get("startedAgo", 0), each["endsIn"], _share(each, "batchNodes"))
        for each in case.get("windows") or ()
    ]
    pool = PoolFacts(
        members=case["members"],
        online_reserve=online,
        batch_reserve=batch,
        windows=windows,
        lead_s=case.get("leadSeconds", 1800),
        suspended=case.get("suspend", False),
        lent=case.get("current", 0),
    )
    return {"target": target(pool, 0.0, None).nodes}


ADAPTERS = {"tidal-plan": tidal_plan}
