"""The report of the demonstration."""

from koordinator.node_demo import page, results
from koordinator.node_demo.plan import DemoMode
from koordinator.node_demo.show import ShownResults
from tests.node_demo.measurements import measured


def test_the_page_says_what_was_promised_what_came_out_and_whether_the_machine_was_quiet() -> None:
    runs = [
        measured(),
        measured(DemoMode.UNMANAGED, p99_ms=30.0),
        measured(DemoMode.MANAGED, other_ratio=0.2),
    ]
    shown = ShownResults(
        runs,
        cpus=2,
        request_cpu_ms=1.1,
        kernel="6.18",
        machine="Test",
        cgroup_version=1,
        began_s=0.0,
        written=[],
    )

    text = page.render(shown, results.summarise(runs))

    assert "40 % load, cpu hog" in text
    assert "<td>10.00</td>" in text
    assert "missed" in text
    assert "not quiet" in text
    assert "besteffort/cpu.idle" in text
    assert "$" + "{" not in text.split("<script>")[0]
