"""`koordinator up --process-node`: real pods, the real node agent, stock kubectl; batch throttled for a service."""

import base64
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordinator.host import cgroups
from koordinator.host.cgroups import Cgroups
from koordinator.host.files import Files, HostRoots
from tests.e2e.cluster import Cluster, only_local, started, until

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.kubectl,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on the PATH"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: real groups are made"),
    pytest.mark.timeout(180),
]

CPUS = os.cpu_count() or 1
CONFIG = """
apiVersion: v1
kind: ConfigMap
metadata: {name: slo-controller-config, namespace: koordinator-system}
data:
  colocation-config: '{"enable": true, "metricReportIntervalSeconds": 30, "metricAggregateDurationSeconds": 30}'
  resource-threshold-config: |
    {"clusterStrategy": {"enable": true, "cpuSuppressPolicy": "cfsQuota", "cpuSuppressThresholdPercent": 65}}
"""
SERVICE = f"""
apiVersion: v1
kind: Pod
metadata: {{name: service, labels: {{koordinator.sh/qosClass: LS}}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: any
    command: [sh, -c, "trap 'kill 0' TERM; for i in $(seq {CPUS}); do (while :; do :; done) & done; wait"]
    resources: {{requests: {{cpu: 500m, memory: 64Mi}}, limits: {{memory: 256Mi}}}}
"""
# Memory only: on a machine that others keep busy there is no CPU to lend.
JOB = """
apiVersion: config.koordinator.sh/v1alpha1
kind: ClusterColocationProfile
metadata: {name: batch}
spec:
  namespaceSelector: {matchLabels: {colocation: "true"}}
  qosClass: BE
  priorityClassName: koord-batch
  schedulerName: koord-scheduler
---
apiVersion: v1
kind: Namespace
metadata: {name: batch, labels: {colocation: "true"}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: crunch, namespace: batch}
spec:
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: any
        command: [sh, -c, "while :; do :; done"]
        resources: {requests: {memory: 64Mi}, limits: {memory: 64Mi}}
"""
BATCH = "kubepods/besteffort"


@pytest.fixture
def groups() -> Iterator[Cgroups]:
    files = Files()
    found = Cgroups(files, cgroups.detect(files, HostRoots.below("")))
    if found.driver() is not None:
        pytest.skip("a kubelet runs on this machine, or another process node")
    yield found
    files.close()


@pytest.fixture
def cluster(groups: Cgroups, tmp_path: Path) -> Iterator[Cluster]:
    running = started(tmp_path, "--process-node")
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.stop()
    assert groups.driver() is None, "nothing is left behind"


def test_batch_work_lands_on_what_a_service_leaves_and_is_throttled_for_it(
    cluster: Cluster, groups: Cgroups
) -> None:
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", text=CONFIG)
    cluster.kubectl("apply", "-f", "-", text=JOB)

    # What the node agent reports makes the manager lend it out, and only then does the job have a place.
    until(lambda: _batch_resources(cluster), 90, cluster.process)
    cluster.kubectl(
        "-n", "batch", "wait", "--for=condition=Ready", "pod", "-ljob-name=crunch", "--timeout=30s"
    )
    (job,) = cluster.get("pods", "-n", "batch")["items"]
    assert "kubernetes.io/batch-memory" in job["spec"]["containers"][0]["resources"]["limits"]
    of_job = f"{BATCH}/pod{job['metadata']['uid']}"
    assert groups.procs(f"{of_job}/{_container_id(job)}")

    cluster.kubectl("apply", "-f", "-", text=SERVICE)
    cluster.kubectl("wait", "--for=condition=Ready", "pod/service", "--timeout=30s")

    # 65 % of the machine are taken by the service alone: what is left to batch is the floor.
    until(lambda: 0 < (groups.quota_us(BATCH) or 0) <= CPUS * 100_000 // 4, 30, cluster.process)
    throttled = _throttled(groups)
    until(lambda: _throttled(groups) > throttled, 10, cluster.process)
    service, batch = _cpu_rates(groups, ("kubepods/burstable", BATCH), 1.0)
    assert batch < service / 2, (batch, service)
    until(lambda: "service" in _reported_pods(cluster), 60, cluster.process)

    cluster.kubectl("delete", "job", "crunch", "-n", "batch", "--wait=true", "--timeout=30s")
    until(lambda: not groups.exists(of_job), 10, cluster.process)


FILES = """
apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {greeting: hello}
---
apiVersion: v1
kind: Secret
metadata: {name: word}
stringData: {word: sesame}
---
apiVersion: v1
kind: Pod
metadata: {name: reader, labels: {app: reader}}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: any
    command: [sh, -c, "cd all && cat conf/greeting word; echo; cat labels; echo; cut -d. -f2 token"]
    volumeMounts: [{name: all, mountPath: /all}]
  volumes:
  - name: all
    projected:
      sources:
      - configMap: {name: conf, items: [{key: greeting, path: conf/greeting}]}
      - secret: {name: word}
      - downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}
      - serviceAccountToken: {path: token, expirationSeconds: 600}
"""


def test_a_pod_finds_its_files_and_its_log_is_read(cluster: Cluster) -> None:
    cluster.kubectl("apply", "-f", "-", text=FILES)
    cluster.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/reader", "--timeout=30s")

    greeting, labels, claims = cluster.kubectl("logs", "-f", "reader").splitlines()

    assert (greeting, labels) == ("hellosesame", 'app="reader"')
    bound = json.loads(base64.urlsafe_b64decode(claims + "=="))["kubernetes.io"]
    assert bound["pod"] == {"name": "reader", "uid": cluster.get("pod", "reader")["metadata"]["uid"]}
    assert cluster.kubectl("logs", "--tail=1", "reader").strip() == claims


@only_local("an API server elsewhere runs commands over SPDY, which the node does not speak")
def test_a_command_runs_in_a_container(cluster: Cluster) -> None:
    cluster.kubectl("apply", "-f", "-", text=SERVICE)
    cluster.kubectl("wait", "--for=condition=Ready", "pod/service", "--timeout=30s")

    assert cluster.kubectl("exec", "service", "--", "echo", "here") == "here\n"


def _reported_pods(cluster: Cluster) -> set[str]:
    (metric,) = cluster.get("nodemetrics")["items"]
    return {pod["name"] for pod in metric["status"].get("podsMetric", [])}


def _batch_resources(cluster: Cluster) -> bool:
    allocatable = cluster.get("nodes")["items"][0]["status"]["allocatable"]
    return (
        int(allocatable.get("kubernetes.io/batch-memory", 0)) > 0 and "kubernetes.io/batch-cpu" in allocatable
    )


def _container_id(pod: dict[str, Any]) -> str:
    text: str = pod["status"]["containerStatuses"][0]["containerID"]
    return text.removeprefix("containerd://")


def _throttled(groups: Cgroups) -> int:
    found = groups.throttling(BATCH)
    return 0 if found is None else found.throttled


def _cpu_rates(groups: Cgroups, names: tuple[str, str], seconds: float) -> list[float]:
    """CPU use of groups, in cores."""
    before = [groups.cpu_usage_ns(name) or 0 for name in names]
    time.sleep(seconds)
    after = [groups.cpu_usage_ns(name) or 0 for name in names]
    return [(late - early) / seconds / 1e9 for early, late in zip(before, after, strict=True)]
