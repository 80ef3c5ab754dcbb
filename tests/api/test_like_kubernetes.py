"""On random questions our arithmetic, selectors, taints, NUMA hints and CPU lists answer as the packages of Kubernetes
do, in the release that Koordinator has.

What a question may not be compared by is left out by a rule that is stated where it is applied.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from koordinator.api import cpuset, label_selector, pod_resources, qos, quantity, resource_list, tolerations
from koordinator.api.affinity import LabelSelector, Taint, Toleration
from koordinator.api.annotations.placement import NUMATopologyPolicy
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import Family, Quantity, QuantityError
from koordinator.local import selectors
from koordinator.scheduler.plugins.node_numa_resource.hint_merge import NUMATopologyHint, admit
from tests import go_programs
from tests.api.kubernetes_packages import draw as drawn
from tests.api.kubernetes_packages.draw import Draw, Json
from tests.go_programs import Ask, Missing
from tests.searches import examples

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1800)]

CASES = 5_000
PROGRAM = Path(__file__).with_name("kubernetes_packages")


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    try:
        path = go_programs.provide(PROGRAM, "packages", "packages of Kubernetes")
    except Missing as missing:
        pytest.skip(str(missing))
    with go_programs.answering(path) as found:
        yield found


def draws(kind: str) -> Iterator[Draw]:
    return (Draw(kind, number) for number in range(examples(CASES)))


# Quantities


def test_quantities_are_read_compared_and_added_alike(ask: Ask) -> None:
    read = 0
    for draw in draws("quantity"):
        a, b = drawn.quantity_text(draw), drawn.quantity_text(draw)
        if is_refused_on_purpose(a) or is_refused_on_purpose(b):
            continue
        real = ask({"kind": "quantity", "a": a, "b": b})
        ours = [read_by(quantity.parse, a), read_by(quantity.parse, b)]
        for text, one, other in zip((a, b), ours, (real["a"], real["b"]), strict=True):
            assert is_alike(one, other), f"{text!r}: ours {one}, real {other}"
        if ours[0] is None or ours[1] is None:
            continue
        read += 1
        x, y = ours[0], ours[1]
        assert (x > y) - (x < y) == real["cmp"], (a, b)
        assert is_text(x + y, real["sum"]), f"{a} + {b}: {x + y}, not {real['sum']}"
        assert is_text(x - y, real["difference"]), f"{a} - {b}: {x - y}, not {real['difference']}"
    assert read > examples(CASES) / 3


def test_quantities_in_json_are_read_alike(ask: Ask) -> None:
    read = 0
    for draw in draws("json"):
        raw = drawn.json_number(draw)
        if isinstance(raw, str) and (is_refused_on_purpose(raw.strip()) or "\n" in raw):
            continue  # the real one does not undo what JSON does to the end of a line
        real = ask({"kind": "json", "raw": raw})
        ours = read_by(quantity.of, raw)
        assert is_alike(ours, real), f"{raw!r}: ours {ours}, real {real}"
        read += ours is not None
    assert read > examples(CASES) / 2


def is_refused_on_purpose(text: str) -> bool:
    """Whether a text says no digit in a way that the real one refuses only for how it calculates."""
    return re.fullmatch(r"[+-]?\.?(Pi|Ei|[eE]-\d+)", text) is not None


def read_by(reader: Callable[[Any], Quantity], raw: Any) -> Quantity | None:
    try:
        return reader(raw)
    except QuantityError:
        return None


def is_alike(ours: Quantity | None, real: dict[str, Any] | None) -> bool:
    if ours is None or real is None:
        return ours is real
    return is_text(ours, real["text"]) and all(
        is_beyond_int64(ours, unit, whole) or whole == real[view]
        for view, unit, whole in (("value", quantity.NANO, ours.value), ("milli", 10**6, ours.milli))
    )


def is_beyond_int64(ours: Quantity, unit: int, whole: int) -> bool:
    """Whether the real one calculates what does not fit; amounts below zero it rounds up when they have many digits."""
    below = ours.nanos < 0 and (ours.nanos % unit or ours.nanos < -(2**63))
    return abs(whole) > quantity.INT64_MAX or bool(below)


def is_text(ours: Quantity, real: str) -> bool:
    """Whether both are written alike; the real one forgets the exponent of 10^21 and more."""
    return ours.text == real or (ours.family is not Family.EXPONENT and ours.text == f"{real}e21")


# Pods


def test_pods_have_the_same_amounts_and_the_same_qos_class(ask: Ask) -> None:
    seen = set()
    for draw in draws("pod"):
        raw = drawn.pod(draw)
        pod, wire = from_builtins(raw, Pod), resource_list.to_wire
        ours = {
            "requests": wire(pod_resources.requests(pod)),
            "limits": wire(resource_list.of(pod_resources.wire_limits(pod))),
            "specRequests": wire(pod_resources.spec_requests(pod.spec)),
            "withoutOverhead": wire(pod_resources.spec_requests(pod.spec, with_overhead=False)),
            "qos": qos.kube(pod).value,
            "computedQos": qos.computed_kube(pod).value,
        }
        assert ours == ask({"kind": "pod", "pod": raw}), raw
        seen.add(ours["computedQos"])
    assert seen == {"Guaranteed", "Burstable", "BestEffort"}


# Labels


def test_label_selectors_match_alike(ask: Ask) -> None:
    matched = refused = 0
    for draw in draws("selector"):
        sets, selector = drawn.label_sets(draw), drawn.label_selector(draw)
        ours = matches_of(
            lambda raw: label_selector.compile_selector(from_builtins(raw, LabelSelector)), selector, sets
        )
        assert ours == ask({"kind": "selector", "selector": selector, "labels": sets}), (selector, sets)
        refused += not ours
        matched += any(ours.get("matches", ()))
    assert matched > examples(CASES) / 5
    assert refused > examples(CASES) / 50


def test_selectors_as_text_match_alike(ask: Ask) -> None:
    """In queries of the API server, and in configuration, which has no `<` and `>`."""
    matched = refused = 0
    for draw in draws("text"):
        sets, text = drawn.label_sets(draw), drawn.selector_text(draw)
        real = ask({"kind": "text", "text": text, "labels": sets})
        assert matches_of(lambda text: selectors.labels(text) or bool_of, text, sets) == real, (text, sets)
        if "<" not in text and ">" not in text:
            ours = matches_of(
                lambda text: label_selector.compile_selector(label_selector.of_text(text)), text, sets
            )
            assert ours == real, (text, sets)
        refused += not real
        matched += any(real.get("matches", ()))
    assert matched > examples(CASES) / 5
    assert refused > examples(CASES) / 50


def bool_of(labels: Any) -> bool:
    """Say yes, as a selector does that says nothing."""
    return True


def matches_of(compiled: Any, selector: Any, sets: list[dict[str, str]]) -> Json:
    try:
        test = compiled(selector)
    except (ProtocolError, selectors.SelectorError):
        return {}
    return {"matches": [test(labels) for labels in sets]}


# Taints


def test_taints_are_tolerated_alike(ask: Ask) -> None:
    tolerated = 0
    for draw in draws("taints"):
        many, taint = [drawn.toleration(draw) for _ in range(draw.randint(1, 2))], drawn.taint(draw)
        ours = tolerations.is_tolerated(
            [from_builtins(one, Toleration) for one in many], from_builtins(taint, Taint)
        )
        assert {"tolerated": ours} == ask({"kind": "taints", "tolerations": many, "taint": taint}), (
            many,
            taint,
        )
        tolerated += ours
    assert tolerated > examples(CASES) / 20


# NUMA hints

POLICIES = {
    "best-effort": NUMATopologyPolicy.BEST_EFFORT,
    "restricted": NUMATopologyPolicy.RESTRICTED,
    "single-numa-node": NUMATopologyPolicy.SINGLE_NUMA_NODE,
}


def test_numa_hints_are_admitted_as_the_kubelet_admits_them(ask: Ask) -> None:
    """Without scores and exclusivity, which the kubelet does not have. Of hints that are not preferred, it takes wider
    ones than Koordinator's: only what is preferred is compared by its NUMA nodes."""
    preferred = 0
    for draw in draws("hints"):
        count, policy = draw.randint(1, 4), draw.choice([*POLICIES])
        given = drawn.hint_lists(draw, count)
        providers = [
            {name: None if hints is None else [hint(one) for one in hints] for name, hints in each.items()}
            for each in given
        ]
        ours = admit(POLICIES[policy], (1 << count) - 1, providers)
        real = ask({"kind": "hints", "nodes": count, "policy": policy, "providers": given})
        where = f"{count} {policy} {given}: ours {ours}, real {real}"
        assert (ours.hint.is_preferred, ours.status.is_success) == (real["preferred"], real["admitted"]), (
            where
        )
        if ours.hint.is_preferred:
            preferred += 1
            assert ours.hint.numa_nodes == (
                None if real["any"] else sum(1 << one for one in real["nodes"])
            ), where
    assert preferred > examples(CASES) / 5


def hint(raw: Json) -> NUMATopologyHint:
    return NUMATopologyHint(
        None if raw.get("any") else sum(1 << one for one in raw["nodes"]), raw["preferred"]
    )


# CPUs


def test_lists_of_cpus_are_read_and_written_alike(ask: Ask) -> None:
    """In Koordinator a reversed range is none, one must not end above 4096, and `0--0` is none: they are left out."""
    read = 0
    for draw in draws("cpuset"):
        text = drawn.cpu_list(draw)
        ranges = [(int(first), int(last)) for first, last in re.findall(r"(\d+)-\+?(\d+)", text)]
        if "--" in text or any(first > last or last > cpuset.RANGE_END_MAX for first, last in ranges):
            continue
        try:
            cpus = cpuset.parse(text)
            ours: Json = {"cpus": sorted(cpus), "text": cpuset.text_of(cpus)}
            read += 1
        except cpuset.CPUSetError:
            ours = {}
        assert ours == ask({"kind": "cpuset", "text": text}), text
    assert read > examples(CASES) / 3
