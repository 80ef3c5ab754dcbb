"""What the closed loop leaves batch: policies only shrink, only for batch, and one pod's quota only falls."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from koordinator.api.annotations.koordlet import ContainerResources
from koordinator.api.decode import from_builtins
from koordinator.api.qos import QoSClass
from koordinator.api.quantity import value
from koordinator.api.slo_qos import ResourceQOSStrategy
from koordinator.host.cgroup_knobs import UNLIMITED
from koordinator.koordlet.allowance import AS_CONFIGURED, BatchAllowance, shrunk
from koordinator.koordlet.hooks.batch_resource import BatchRule, container_limits, pod_limits

PERCENT = st.integers(5, 100)
SECTIONS = st.fixed_dictionaries(
    {
        "resctrlQOS": st.fixed_dictionaries(
            {
                "enable": st.booleans(),
                "catRangeStartPercent": st.integers(0, 50),
                "catRangeEndPercent": st.integers(51, 100),
                "mbaPercent": st.integers(1, 100),
            }
        ),
        "blkioQOS": st.fixed_dictionaries(
            {
                "enable": st.booleans(),
                "blocks": st.lists(
                    st.fixed_dictionaries(
                        {"ioCfg": st.fixed_dictionaries({"readBPS": st.integers(0, 10**9)})}
                    ),
                    max_size=2,
                ),
            }
        ),
        "networkQOS": st.fixed_dictionaries(
            {
                "enable": st.booleans(),
                "egressLimit": st.integers(0, 100) | st.sampled_from(["10M", "1G", "much"]),
            }
        ),
    }
)


@given(be=SECTIONS, ls=SECTIONS, cache=PERCENT, disk=PERCENT, network=PERCENT)
def test_policies_shrink_for_batch_alone_and_never_to_no_limit(
    be: dict[str, Any], ls: dict[str, Any], cache: int, disk: int, network: int
) -> None:
    before = from_builtins({"beClass": be, "lsClass": ls}, ResourceQOSStrategy)
    allowed = BatchAllowance(cache_percent=cache, disk_percent=disk, network_percent=network)

    after = shrunk(before, allowed)

    assert after.ls_class == before.ls_class and shrunk(before, AS_CONFIGURED) is before
    assert before.be_class is not None and after.be_class is not None
    for name in ("resctrl_qos", "blkio_qos", "network_qos"):
        was, now = getattr(before.be_class, name), getattr(after.be_class, name)
        assert was.enable or was == now, "what is off stays as it is"
    old, new = before.be_class.resctrl_qos, after.be_class.resctrl_qos
    assert old is not None and new is not None
    assert (
        (old.cat_range_start_percent or 0)
        < (new.cat_range_end_percent or 0)
        <= (old.cat_range_end_percent or 0)
    )
    assert 1 <= (new.mba_percent or 0) <= (old.mba_percent or 0)
    blocks = zip(before.be_class.blkio_qos.blocks, after.be_class.blkio_qos.blocks, strict=True)  # type: ignore[union-attr]
    for one, other in blocks:
        was_bps, now_bps = one.io_cfg.read_bps or 0, other.io_cfg.read_bps or 0
        assert now_bps <= was_bps and bool(now_bps) == bool(was_bps), "0 would be no limit"
    limits = [each.be_class.network_qos.egress_limit for each in (before, after)]  # type: ignore[union-attr]
    if limits[0] != "much":
        assert value(limits[1] or 0) <= value(limits[0] or 0) and bool(limits[1]) == bool(limits[0])


AMOUNTS = st.integers(1, 64_000)


@given(limit=st.none() | AMOUNTS, cap=AMOUNTS, uses_quota=st.booleans())
def test_a_cap_only_lowers_the_quotas_of_a_pod_and_its_containers_alike(
    limit: int | None, cap: int, uses_quota: bool
) -> None:
    limits = {} if limit is None else {"kubernetes.io/batch-cpu": str(limit)}
    own = ContainerResources(requests={"kubernetes.io/batch-cpu": "1"}, limits=limits)
    rule = BatchRule(uses_quota=uses_quota)
    for capped, free in (
        (pod_limits(QoSClass.BE, {"c": own}, rule, (), cap), pod_limits(QoSClass.BE, {"c": own}, rule)),
        (container_limits(QoSClass.BE, own, rule, cap), container_limits(QoSClass.BE, own, rule)),
    ):
        assert capped.quota_us is not None and capped.quota_us > 0
        assert free.quota_us == UNLIMITED or capped.quota_us <= (free.quota_us or 0)
        assert capped.shares == free.shares and capped.memory_bytes == free.memory_bytes
    assert pod_limits(QoSClass.LS, {"c": own}, rule, (), cap).quota_us is None, "services are never capped"
