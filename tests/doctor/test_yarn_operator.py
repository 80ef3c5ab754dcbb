"""NodeManagers without an operator, or without a name; nodes that are not lent, or say what is no more."""

from koordinator.api.core import Node, Pod
from koordinator.api.groups import Lease
from koordinator.yarn import amounts
from tests.doctor.builders import decoded, findings, healthy, lease, snapshot


def node_manager(node_id: str | None = "nm:8041") -> Pod:
    marks = {"labels": {amounts.COMPONENT_LABEL: amounts.NODE_MANAGER}}
    if node_id is not None:
        marks["annotations"] = {amounts.NODE_ID_ANNOTATION: node_id}
    body = {"metadata": marks, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}}
    return decoded(Pod, body, name="nm", namespace="hadoop")


def node(**annotations: str) -> Node:
    texts = {f"node.koordinator.sh/{key}": text for key, text in annotations.items()}
    return decoded(Node, {"metadata": {"annotations": texts}}, name="n1")


LENT = node(originExtendedAllocatable='{"resources":{"kubernetes.io/batch-cpu":"8000"}}')


def problems(*objects: Pod | Node, operator: bool = True) -> list[str]:
    found = healthy()
    found[Pod] = [each for each in objects if isinstance(each, Pod)]
    found[Node] = [each for each in objects if isinstance(each, Node)]
    if operator:
        found[Lease] = [*found[Lease], lease("koordinator-yarn-operator", "us")]
    return [each.problem for each in findings("yarn-operator", snapshot(found))]


def test_a_node_manager_with_a_name_on_a_lent_node_is_no_trouble() -> None:
    assert problems(node_manager(), LENT) == []
    assert problems(LENT, operator=False) == []


def test_what_keeps_yarn_from_its_share_is_told() -> None:
    assert problems(node_manager(), LENT, operator=False) == [
        "NodeManagers run, but no koord-yarn-operator leads"
    ]
    assert problems(node_manager("nm"), LENT) == [f"{amounts.NODE_ID_ANNOTATION}: 'nm' is not host:port"]
    assert problems(node_manager(), node()) == ["run a NodeManager, but koord-manager lends nothing of them"]


def test_a_node_that_still_counts_what_yarn_has_left_is_told() -> None:
    text = amounts.new_text(None, amounts.BatchAmount(1_000, 0))
    assert text is not None
    assert problems(node(thirdPartyAllocations=text)) == ["say that YARN uses them, but run no NodeManager"]
