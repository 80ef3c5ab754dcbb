"""Stock kubectl against the API server on the real registry: what a user types, and what they must see."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from koordinator.clock import SystemClock
from koordinator.cluster.informer import InformerFactory
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import interfaces
from koordinator.local.controllers.garbage_collector import GarbageCollector
from koordinator.local.controllers.namespace import NamespaceController
from koordinator.local.registry import ObjectRegistry
from tests.local.apiserver.kubectl import Kubectl, needs_kubectl
from tests.local.apiserver.manifests import NODE, WIDGET, WIDGETS
from tests.local.apiserver.world import real_server

pytestmark = [pytest.mark.kubectl, needs_kubectl, pytest.mark.asyncio(loop_scope="module")]

CONFIG = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\ndata: {color: %s}\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kubectl(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Kubectl]:
    server, backend = real_server(SystemClock())
    await server.start()
    kubectl = Kubectl(server, tmp_path_factory.mktemp("kubectl"))
    await kubectl("create -f -", stdin=json.dumps(WIDGETS))
    await kubectl("create -f -", stdin=json.dumps(NODE))
    controllers = asyncio.create_task(_controllers(backend))
    yield kubectl
    controllers.cancel()
    await asyncio.gather(controllers, return_exceptions=True)
    await server.stop()


async def _controllers(backend: ObjectRegistry) -> None:
    """What deletions wait for: orphans are released and namespaces emptied."""
    cluster = MemoryCluster(backend)
    factory = InformerFactory(cluster, random.Random(0))
    garbage = GarbageCollector(cluster, factory, backend.resources)
    namespaces = NamespaceController(cluster, factory, backend.resources)
    async with asyncio.TaskGroup() as group:
        factory.start(group)
        group.create_task(garbage.run())
        group.create_task(namespaces.run())


async def test_get_prints_tables_of_built_in_kinds(kubectl: Kubectl) -> None:
    await kubectl("run table --image=nginx --labels=app=table")

    assert (await kubectl("get pods table")).splitlines()[0].split() == [
        "NAME",
        "READY",
        "STATUS",
        "RESTARTS",
        "AGE",
    ]
    assert "NOMINATED NODE" in await kubectl("get pods -A -o wide")
    assert (await kubectl("get nodes")).split()[5:8] == ["node-1", "Ready", "worker"]
    assert "app=table" in await kubectl("get pods table --show-labels")
    assert (await kubectl("get pod table -o name")).strip() == "pod/table"
    assert (await kubectl("get pod table -o jsonpath={.spec.containers[0].image}")) == "nginx"
    assert (await kubectl("get pods -l app=table -o custom-columns=N:.metadata.name")).split() == [
        "N",
        "table",
    ]
    assert "\nkind: Pod\n" in await kubectl("get pod table -o yaml")
    assert json.loads(await kubectl("get pods -o json"))["kind"] == "List"
    assert (await kubectl("get pods --field-selector metadata.name=table --no-headers")).split()[0] == "table"
    assert "service/kubernetes" in await kubectl("get all")
    assert "table" in await kubectl("get pods --chunk-size=1 --sort-by=.metadata.name")


async def test_get_watch_prints_changes_as_they_happen(kubectl: Kubectl) -> None:
    await kubectl("create configmap watched --from-literal=a=1")
    process = await kubectl.start("get configmap watched -w --output-watch-events")
    assert process.stdout is not None
    async with asyncio.timeout(10):
        head, added = [await process.stdout.readline() for _ in range(2)]
        await kubectl('patch configmap watched --type=merge -p \'{"data":{"b":"2"}}\'')
        modified = await process.stdout.readline()
        await kubectl("delete configmap watched")
        deleted = await process.stdout.readline()
    process.kill()
    await process.communicate()

    assert head.split() == [b"EVENT", b"NAME", b"DATA", b"AGE"]
    assert [line.split()[:3] for line in (added, modified, deleted)] == [
        [b"ADDED", b"watched", b"1"],
        [b"MODIFIED", b"watched", b"2"],
        [b"DELETED", b"watched", b"2"],
    ]


async def test_describe_tells_about_pods_nodes_and_deployments(kubectl: Kubectl) -> None:
    await kubectl("create deployment described --image=nginx --replicas=2")
    await kubectl("run described --image=nginx")

    assert "2 desired" in await kubectl("describe deployment described")
    assert "Status:           Pending" in await kubectl("describe pod described")
    assert "node-role.kubernetes.io/worker" in await kubectl("describe node node-1")


async def test_apply_creates_configures_and_leaves_alone(kubectl: Kubectl) -> None:
    assert "created" in await kubectl("apply -f -", stdin=CONFIG % ("applied", "red"))
    assert "configured" in await kubectl("apply -f -", stdin=CONFIG % ("applied", "blue"))
    assert "unchanged" in await kubectl("apply -f -", stdin=CONFIG % ("applied", "blue"))
    assert (await kubectl("get configmap applied -o jsonpath={.data.color}")) == "blue"


async def test_server_side_apply_tells_of_conflicts_and_can_be_forced(kubectl: Kubectl) -> None:
    command = "apply --server-side -f - --field-manager="
    assert "serverside-applied" in await kubectl(command + "one", stdin=CONFIG % ("owned", "red"))

    refused = await kubectl.fails(command + "two", stdin=CONFIG % ("owned", "blue"))
    await kubectl(command + "two --force-conflicts", stdin=CONFIG % ("owned", "blue"))

    assert 'conflict with "one": .data.color' in refused
    assert (await kubectl("get configmap owned -o jsonpath={.data.color}")) == "blue"
    assert "manager: two" in await kubectl("get configmap owned -o yaml --show-managed-fields")


async def test_diff_and_dry_run_change_nothing(kubectl: Kubectl) -> None:
    await kubectl("apply -f -", stdin=CONFIG % ("kept", "red"))

    code, diff, _ = await kubectl.run("diff -f -", stdin=CONFIG % ("kept", "blue"))
    await kubectl("apply -f - --dry-run=server", stdin=CONFIG % ("kept", "blue"))
    await kubectl("create configmap ghost --dry-run=server")

    assert code == 1
    assert "+  color: blue" in diff
    assert (await kubectl("get configmap kept -o jsonpath={.data.color}")) == "red"
    assert "not found" in await kubectl.fails("get configmap ghost")


async def test_edit_patch_label_annotate_and_replace(kubectl: Kubectl) -> None:
    await kubectl("apply -f -", stdin=CONFIG % ("edited", "red"))

    await kubectl("edit configmap edited", env={"KUBE_EDITOR": "sed -i s/red/green/"})
    await kubectl('patch configmap edited --type=json -p \'[{"op":"add","path":"/data/a","value":"1"}]\'')
    await kubectl('patch configmap edited -p \'{"data":{"b":"2"}}\'')
    await kubectl("label configmap edited team=a")
    await kubectl("annotate configmap edited note=hello")

    edited = json.loads(await kubectl("get configmap edited -o json"))
    assert edited["data"] == {"color": "green", "a": "1", "b": "2"}
    assert edited["metadata"]["labels"] == {"team": "a"}
    await kubectl("replace -f -", stdin=CONFIG % ("edited", "black"))
    assert json.loads(await kubectl("get configmap edited -o json"))["data"] == {"color": "black"}


async def test_scale_set_image_expose_and_rollout(kubectl: Kubectl) -> None:
    await kubectl("create deployment rolled --image=nginx:1 --port=80")

    await kubectl("scale deployment rolled --replicas=4")
    await kubectl("set image deployment rolled nginx=nginx:2")
    await kubectl("expose deployment rolled --port=80")
    await kubectl("rollout restart deployment rolled")

    assert "DESIRED" in await kubectl("get deployment rolled --subresource=scale")
    assert (await kubectl("get deployment rolled -o jsonpath='{.spec.replicas} {..image}'")) == "4 nginx:2"
    assert "80/TCP" in await kubectl("get service rolled")


async def test_delete_by_name_label_all_and_cascade(kubectl: Kubectl) -> None:
    await kubectl("create namespace deletions")
    for name in ("a", "b", "c", "d"):
        await kubectl(f"create configmap {name} -n deletions")
    await kubectl("label configmap b -n deletions gone=yes")

    await kubectl("delete configmap a -n deletions")
    await kubectl("delete configmap -l gone=yes -n deletions")
    await kubectl("delete configmap c -n deletions --cascade=orphan")
    await kubectl("delete configmap --all -n deletions")

    out = await kubectl("get configmap -n deletions", stderr=True)
    assert "No resources found" in out
    await kubectl("run brief --image=nginx -n deletions")
    await kubectl("delete pod brief -n deletions --grace-period=0 --force", stderr=True)
    await kubectl("delete namespace deletions")
    assert "not found" in await kubectl.fails("get namespace deletions")


async def test_cordon_taint_and_drain(kubectl: Kubectl) -> None:
    await kubectl("cordon node-1")
    assert "SchedulingDisabled" in await kubectl("get node node-1")
    await kubectl("uncordon node-1")
    await kubectl("taint node node-1 key=value:NoSchedule")
    assert "key=value:NoSchedule" in await kubectl("describe node node-1")
    await kubectl("taint node node-1 key-")
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "drained"},
        "spec": {"nodeName": "node-1", "containers": [{"name": "main", "image": "nginx"}]},
        "status": {"phase": "Running"},
    }
    await kubectl("create -f -", stdin=json.dumps(pod))

    process = await kubectl.start("drain node-1 --force")
    async with asyncio.timeout(20):
        while "deletionTimestamp" not in await kubectl("get pod drained -o yaml"):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await kubectl("delete pod drained --grace-period=0 --force", stderr=True)
        out, _ = await process.communicate()

    assert "node/node-1 drained" in out.decode()
    await kubectl("uncordon node-1")


async def test_custom_resources_have_columns_explanations_and_scale(kubectl: Kubectl) -> None:
    await kubectl("apply -f -", stdin=json.dumps(WIDGET))

    assert (await kubectl("get widgets")).split()[:3] == ["NAME", "SIZE", "AGE"]
    assert (await kubectl("get wd -o wide")).split()[:4] == ["NAME", "SIZE", "COLOR", "AGE"]
    assert (await kubectl("get wd w1 -o jsonpath={.spec.color}")) == "red"
    assert "A widget is what example.com makes." in await kubectl("explain widget")
    assert "How big it is." in await kubectl("explain widget.spec.size")
    await kubectl("scale widget w1 --replicas=7")
    assert (await kubectl("get wd w1 -o jsonpath={.spec.replicas}")) == "7"
    too_small = {**WIDGET, "metadata": {"name": "w2"}, "spec": {"size": 0}}
    refused = await kubectl.fails("create -f -", stdin=json.dumps(too_small))
    assert 'The Widget "w2" is invalid: spec.size: Invalid value: 0' in refused


async def test_discovery_explain_and_cluster_info(kubectl: Kubectl) -> None:
    (widgets,) = (await kubectl("api-resources --api-group=example.com --no-headers")).splitlines()
    assert widgets.split() == ["widgets", "wd", "example.com/v1", "true", "Widget"]
    versions = await kubectl("api-versions")
    assert {"v1", "apps/v1", "example.com/v1", "metrics.k8s.io/v1beta1"} <= set(versions.split())
    assert "containers" in await kubectl("explain pod.spec")
    assert "is running at" in await kubectl("cluster-info")
    assert f"v{interfaces.KUBERNETES}" in await kubectl("version", stderr=True)  # kubectl may warn of its age
    assert json.loads(await kubectl("get --raw /version"))["major"] == "1"


async def test_auth_questions_are_answered(kubectl: Kubectl) -> None:
    assert (await kubectl("auth can-i create pods")).strip() == "yes"
    assert "system:masters" in await kubectl("auth whoami")
    assert "*.*" in await kubectl("auth can-i --list")
    group = "system:masters"
    assert (await kubectl(f"auth can-i delete pods --as=someone --as-group={group}")).strip() == "yes"


async def test_a_bound_role_is_what_its_user_may_do(kubectl: Kubectl) -> None:
    await kubectl("create rolebinding jane-views --clusterrole=view --user=jane")

    assert (await kubectl("auth can-i list pods --as jane")).strip() == "yes"
    assert (await kubectl.fails("auth can-i delete pods --as jane")).strip() == "no"
    assert (await kubectl.fails("get nodes --as jane")).strip() == (
        'Error from server (Forbidden): nodes is forbidden: User "jane" cannot list resource "nodes" in API group "" '
        "at the cluster scope"
    )


QUOTA_AND_POLICY = """
apiVersion: v1
kind: Namespace
metadata: {name: limited}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: few, namespace: limited}
spec: {hard: {count/configmaps: "1"}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: colours}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}
  validations:
  - expression: object.data.color != 'grey'
    messageExpression: "'no ' + object.data.color + ' here'"
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: colours}
spec:
  policyName: colours
  validationActions: [Deny]
  matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: limited}}}
"""


async def test_quotas_and_policies_are_applied_shown_and_enforced(kubectl: Kubectl) -> None:
    await kubectl("apply -f -", stdin=QUOTA_AND_POLICY)

    grey = await kubectl.fails("create -n limited -f -", stdin=CONFIG % ("a", "grey"))
    assert "ValidatingAdmissionPolicy 'colours' with binding 'colours' denied request: no grey here" in grey
    await kubectl("create -n limited -f -", stdin=CONFIG % ("a", "blue"))
    full = await kubectl.fails("create -n limited -f -", stdin=CONFIG % ("b", "blue"))
    assert "exceeded quota: few, requested: count/configmaps=1, used: count/configmaps=1" in full

    described = (await kubectl("describe quota few -n limited")).split()
    assert described[described.index("count/configmaps") :][:3] == ["count/configmaps", "1", "1"]
    (row,) = (await kubectl("get validatingadmissionpolicy --no-headers")).splitlines()
    assert row.split()[:3] == ["colours", "1", "<unset>"]
    (row,) = (await kubectl("get validatingadmissionpolicybinding --no-headers")).splitlines()
    assert row.split()[:3] == ["colours", "colours", "<unset>"]


async def test_wait_and_events(kubectl: Kubectl) -> None:
    waiting = await kubectl.start("wait node/node-1 --for=condition=Ready --timeout=10s")
    out, _ = await waiting.communicate()
    assert "condition met" in out.decode()
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e1", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "name": "table", "namespace": "default"},
        "reason": "Tested",
        "message": "it was tested",
        "type": "Normal",
        "lastTimestamp": "2024-01-01T00:00:00Z",
    }
    await kubectl("create -f -", stdin=json.dumps(event))
    assert "it was tested" in await kubectl("get events")
    assert "it was tested" in await kubectl("events")


@pytest.mark.parametrize(
    ("command", "stdin", "message"),
    [
        pytest.param("get pod nobody", "", 'Error from server (NotFound): pods "nobody" not found', id="not found"),
        pytest.param("get gadgets", "", 'the server doesn\'t have a resource type "gadgets"', id="unknown kind"),
        pytest.param(
            "create -f -", CONFIG.replace("v1", "nobody.example.com/v1") % ("x", "red"),
            'no matches for kind "ConfigMap" in version "nobody.example.com/v1"', id="unknown group",
        ),
        pytest.param("create -f -", "a: b: c", "mapping values are not allowed", id="malformed YAML"),
        pytest.param("create -f -", CONFIG % ("x", "1"), "cannot unmarshal number", id="a number for a text"),
        pytest.param(
            "create -f -", (CONFIG % ("x", "red")).replace("data", "dta"),
            'strict decoding error: unknown field "dta"', id="unknown field",
        ),
        pytest.param("create -f -", CONFIG % ("A_b", "red"), "a lowercase RFC 1123 subdomain", id="a bad name"),
        pytest.param("get pods -l 'a in ('", "", "unable to parse", id="a bad selector"),
        pytest.param("logs table", "", "has no log", id="logs"),
        pytest.param("exec table -- ls", "", "its node simulates containers", id="exec"),
        pytest.param("top nodes", "", "metrics not available yet", id="top without metrics"),
    ],
)  # fmt: skip
async def test_mistakes_are_answered_as_on_a_real_cluster(
    kubectl: Kubectl, command: str, stdin: str, message: str
) -> None:
    assert message in await kubectl.fails(command, stdin=stdin)


async def test_a_stale_version_is_a_conflict(kubectl: Kubectl, tmp_path: Path) -> None:
    await kubectl("apply -f -", stdin=CONFIG % ("stale", "red"))
    stale = await kubectl("get configmap stale -o yaml")
    await kubectl("label configmap stale a=b")

    refused = await kubectl.fails("replace -f -", stdin=stale)

    assert "the object has been modified; please apply your changes to the latest version" in refused


async def test_a_pod_is_debugged_and_resized_and_a_token_created(kubectl: Kubectl) -> None:
    container = {"name": "main", "image": "web", "resources": {"requests": {"cpu": "1"}}}
    worker = {"metadata": {"name": "worker"}, "spec": {"containers": [container]}}
    await kubectl("create -f -", stdin=json.dumps({"apiVersion": "v1", "kind": "Pod", **worker}))

    await kubectl("debug worker --image=busybox --container=shell --attach=false", stderr=True)
    container["resources"] = {"requests": {"cpu": "2"}}
    patch = json.dumps({"spec": {"containers": [container]}}, separators=(",", ":"))
    await kubectl(f"patch pod worker --subresource=resize --patch='{patch}'")

    names = await kubectl("get pod worker -o jsonpath={.spec.ephemeralContainers[*].name}")
    amount = await kubectl("get pod worker -o jsonpath={.spec.containers[0].resources.requests.cpu}")
    token = await kubectl("create token default --duration=20m")
    assert (names, amount, token.count(".")) == ("shell", "2", 2)
