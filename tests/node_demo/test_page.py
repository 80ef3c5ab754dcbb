"""The report of the demonstration."""

import msgspec

from koordinator.node_demo import page, results
from koordinator.node_demo.awake import KeptAwakeBy
from koordinator.node_demo.measure import Measured
from koordinator.node_demo.plan import DemoMode, ServiceKind
from koordinator.node_demo.show import ShownResults
from tests.node_demo.measurements import measured


def shown_results(runs: list[Measured]) -> ShownResults:
    return ShownResults(
        measured=runs,
        cpus=2,
        request_cpu_ms={ServiceKind.CPU: 1.1},
        kernel="6.18",
        machine="Test",
        cgroup_version=1,
        kept_awake_by=KeptAwakeBy.PM_QOS,
        began_s=0.0,
        written=[],
    )


def test_the_page_says_what_was_promised_what_came_out_and_whether_the_machine_was_quiet() -> None:
    runs = [
        measured(),
        measured(DemoMode.UNMANAGED, p99_ms=30.0),
        measured(DemoMode.MANAGED, other_ratio=0.2),
    ]
    shown = shown_results(runs)

    text = page.render(shown, results.summarise(runs))

    assert "40 % load, cpu hog" in text
    assert "<td>10.00</td>" in text
    assert "missed" in text
    assert "not quiet" in text
    assert "besteffort/podbatch-0/cpu.idle" in text
    assert "$" + "{" not in text.split("<script>")[0]


def test_a_matrix_has_one_line_for_each_service_load_and_hog_with_runs_of_earlier_parts() -> None:
    earlier = [
        msgspec.structs.replace(measured(mode, service=ServiceKind.REDIS, p99_ms=p99), records=None)
        for mode, p99 in ((DemoMode.ALONE, 2.0), (DemoMode.AWAKE, 2.0), (DemoMode.UNMANAGED, 9.0))
    ]
    runs = [measured(), measured(DemoMode.UNMANAGED, p99_ms=30.0), *earlier]

    text = page.render(shown_results(runs), results.summarise(runs), is_matrix=True)

    assert "<td>Redis, 40 %, cpu</td><td>2.00 ms</td><td>2.00 ms</td><td>4.50 ×, 43%</td>" in text
    assert "<td>CPU-bound, 40 %, cpu</td><td>3.00 ms</td><td></td><td>10.00 ×, 43%</td>" in text
