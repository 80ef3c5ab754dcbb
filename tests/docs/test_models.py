"""docs/models.md shows the measurement that the model of interference reads."""

from pathlib import Path
from statistics import median

from koordinator.local.nodes import contention

PAGE = Path(__file__).parents[2] / "docs/models.md"


def test_table_1_is_the_kept_measurement() -> None:
    measured = contention.shipped()
    fitted = {mode: contention.curve(measured, mode).slowdown for mode in ("default", "managed")}
    for index, load in enumerate(sorted(measured.p99_ms["alone"])):
        cells = [f"{load} % of the machine", f"{median(measured.p99_ms['alone'][load]):.2f}"]
        for mode, slowdown in fitted.items():
            cells += [f"{median(measured.p99_ms[mode][load]):.2f}", f"{slowdown[index]:.2f}"]
        assert f"| {' | '.join(cells)} |" in PAGE.read_text(encoding="utf-8")
