"""Every query of a dashboard asks for metrics and labels that a component really has."""

import itertools
import re
from collections.abc import Iterator

import pytest

from koordinator.install.dashboards import dashboards
from koordinator.prometheus import Histogram
from tests import exported_metrics

TARGET_LABELS = {"job", "instance"}
"""Which Prometheus adds to everything that it collects."""
WORDS = {
    *("sum", "max", "count", "topk", "bottomk", "rate", "increase", "histogram_quantile", "vector"),
    *("by", "or"),
}


def exported() -> dict[str, set[str]]:
    """Sample name → its labels, of all components."""
    found: dict[str, set[str]] = {}
    for family in itertools.chain.from_iterable(exported_metrics.by_component().values()):
        labels = set(family.labels)
        if isinstance(family, Histogram):
            found[f"{family.name}_bucket"] = labels | {"le"}
            found[f"{family.name}_sum"] = found[f"{family.name}_count"] = labels
        else:
            found[family.name] = labels
    return found


def queries() -> Iterator[tuple[str, str, str]]:
    """(dashboard and panel, expression, legend)."""
    for name, dashboard in dashboards().items():
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                yield f"{name}: {panel['title']}", target["expr"], target["legendFormat"]


DASHBOARDS = dashboards()
METRICS = exported()


@pytest.mark.parametrize(
    ("where", "expression", "legend"), [pytest.param(*each, id=each[0]) for each in queries()]
)
def test_a_query_asks_for_what_there_is(where: str, expression: str, legend: str) -> None:
    assert expression.count("(") == expression.count(")"), "brackets"
    without_texts = re.sub(r'"[^"]*"', '""', expression)
    grouped = [
        label.strip()
        for group in re.findall(r"\bby \(([^)]*)\)", without_texts)
        for label in group.split(",")
    ]
    bare = re.sub(r"\bby \([^)]*\)|\[\w+\]", "", without_texts)
    selectors = re.findall(r"([a-zA-Z_]\w*)\s*(?:\{([^}]*)\})?", re.sub(r"\{[^}]*\}", "", bare))
    names = {name for name, _ in selectors} - WORDS

    assert names, "no metric"
    assert names <= METRICS.keys()
    labels = set().union(*(METRICS[name] for name in names)) | TARGET_LABELS
    for name, matchers in re.findall(r"(\w+)\{([^}]*)\}", bare):
        asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
        assert asked <= METRICS[name] | TARGET_LABELS, name
    assert set(grouped) <= labels
    shown = set(re.findall(r"\{\{(\w+)\}\}", legend))
    assert shown <= (set(grouped) | TARGET_LABELS if grouped else labels), (
        "the legend names what the query drops"
    )


@pytest.mark.parametrize("name", list(DASHBOARDS))
def test_a_variable_reads_a_label_that_there_is(name: str) -> None:
    for variable in DASHBOARDS[name]["templating"]["list"][1:]:
        match = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
        assert match is not None
        assert match[2] in METRICS[match[1]]


@pytest.mark.parametrize("name", list(DASHBOARDS))
def test_panels_have_their_own_numbers_and_places(name: str) -> None:
    panels = DASHBOARDS[name]["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({dashboard["uid"] for dashboard in DASHBOARDS.values()}) == len(DASHBOARDS)
