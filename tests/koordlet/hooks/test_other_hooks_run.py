"""OOM scores, resctrl groups of pods, GPUs and RDMA cards, over trees and as answers to a runtime."""

from pathlib import Path

import msgspec
import pytest

from koordinator.api import labels
from koordinator.api.qos import KubeQoS
from koordinator.host.cgroup_knobs import Knob
from koordinator.host.files import FileFailure, FileProblem
from koordinator.koordlet.config import HookConfig
from koordinator.koordlet.hooks import contexts
from koordinator.koordlet.hooks.contexts import BindMount, ContainerContext, DeviceNode, HookStage, PodContext
from tests.host import host_tree
from tests.koordlet.hooks.hook_node import BURSTABLE, LS_ON, HookNode, classes, native, pod

# OOM scores


def processes(node: HookNode, group: str, scores: dict[int, str]) -> None:
    path = node.root / f"sys/fs/cgroup/cpu/{group}/cgroup.procs"
    path.write_text("".join(f"{pid}\n" for pid in scores))
    host_tree.write(node.root, {f"proc/{pid}/oom_score_adj": text for pid, text in scores.items() if text})


def score(node: HookNode, pid: int) -> str:
    return (node.root / f"proc/{pid}/oom_score_adj").read_text().strip()


def test_processes_get_the_score_of_their_container(tmp_path: Path) -> None:
    node = HookNode(tmp_path, gates="OOMScoreAdj=true")
    node.hooks.start()
    web = pod(
        "web",
        resources=[{}, {}],
        annotations={labels.OOM_SCORE_ADJ: "-500", labels.OOM_SCORE_ADJ_SPEC: '{"c1": 700}'},
    )
    node.run_pods(web)
    processes(node, f"{BURSTABLE}/podweb/web-c0", {10: "3", 11: "-500", 12: ""})
    processes(node, f"{BURSTABLE}/podweb/web-c1", {20: "3"})
    processes(node, f"{BURSTABLE}/podweb/sandbox", {30: "3"})

    node.refresh()

    assert [score(node, pid) for pid in (10, 11, 20, 30)] == ["-500", "-500", "700", "3"]
    reported = {series[-1]: value for series, value in node.shared.metrics.oom_score_adj.values.items()}
    assert reported == {"c0": -500, "c1": 700}
    written = len(node.files.written)
    node.refresh()
    assert len(node.files.written) == written


@pytest.mark.parametrize("text", ["high", "1001", "", "1.5"])
def test_a_score_that_makes_no_sense_changes_nothing(tmp_path: Path, text: str) -> None:
    node = HookNode(tmp_path, gates="OOMScoreAdj=true")
    node.hooks.start()
    node.run_pods(pod("web", annotations={labels.OOM_SCORE_ADJ: text}))
    processes(node, f"{BURSTABLE}/podweb/web-c0", {10: "3"})

    node.refresh()

    assert score(node, 10) == "3"


# Resctrl

RESCTRL = {labels.RESCTRL: '{"llc":{"schemata":{"range":[0,30]}},"mb":{"schemata":{"percent":20}}}'}


class CacheNode(HookNode):
    """A node with resctrl; its kernel fills the directories of new groups."""

    def __init__(self, root: Path) -> None:
        host_tree.resctrl(root)
        host_tree.write(root, {"proc/cpuinfo": "vendor_id : GenuineIntel\nmodel name : x\n"})
        super().__init__(root, gates="Resctrl=true")
        original = self.files.make_directory

        def make(path: str) -> FileProblem | None:
            problem = original(path)
            if problem is None and "/resctrl/" in path:
                host_tree.resctrl_group(root, Path(path).name)
            return problem

        self.files.make_directory = make  # type: ignore[method-assign]
        remove = self.files.remove_directory

        def remove_all(path: str) -> FileProblem | None:
            for each in sorted(Path(path).rglob("*"), reverse=True):
                if each.is_dir():
                    remove(str(each))
            return remove(path)

        self.files.remove_directory = remove_all  # type: ignore[method-assign]

    def schemata(self, uid: str) -> str:
        path = self.root / f"sys/fs/resctrl/koordlet-{uid}/schemata"
        return path.read_text() if path.exists() else "gone"

    def threads(self, uid: str) -> list[str]:
        return (self.root / f"sys/fs/resctrl/koordlet-{uid}/tasks").read_text().split()


def test_a_pods_group_is_made_filled_changed_and_removed_after_it(tmp_path: Path) -> None:
    node = CacheNode(tmp_path)
    node.hooks.start()
    node.run_pods(pod("web", annotations=RESCTRL))
    (tmp_path / f"sys/fs/cgroup/cpu/{BURSTABLE}/podweb/web-c0/tasks").write_text("10\n11\n")
    node.refresh()

    assert "0=3f;1=3f" in node.schemata("web")
    assert "0=20;1=20" in node.schemata("web")
    assert node.threads("web") == ["10", "11"]

    node.run_pods(pod("web", annotations={labels.RESCTRL: RESCTRL[labels.RESCTRL].replace("30", "50")}))
    assert "0=3ff;1=3ff" in node.schemata("web")

    node.run_pods()
    assert node.schemata("web") != "gone", "too young"
    node.clock.now_s += 11
    node.refresh()
    assert node.schemata("web") == "gone"


def test_groups_of_a_former_run_are_removed_once_their_pods_are_known_to_be_gone(tmp_path: Path) -> None:
    node = CacheNode(tmp_path)
    host_tree.resctrl_group(tmp_path, "koordlet-old")
    host_tree.resctrl_group(tmp_path, "BE")
    node.hooks.start()

    node.run_pods()
    node.clock.now_s += 11
    node.refresh()

    assert node.host.resctrl.groups() == ["BE"]


async def test_switched_off_all_groups_of_pods_go(tmp_path: Path) -> None:
    node = CacheNode(tmp_path)
    node.hooks.start()
    node.run_pods(pod("web", annotations=RESCTRL))

    await node.hooks.disable()

    assert node.host.resctrl.groups() == []


def test_a_group_that_the_kernel_refuses_is_reported_once_and_tried_again(tmp_path: Path) -> None:
    node = CacheNode(tmp_path)
    path = f"{node.host.resctrl.root}/koordlet-web"
    make, full = node.files.make_directory, [True]
    node.files.make_directory = lambda each: (  # type: ignore[method-assign]
        FileProblem(path, FileFailure.FULL) if full[0] else make(each)
    )
    node.hooks.start()
    node.run_pods(pod("web", annotations=RESCTRL))
    node.refresh()
    assert node.events.pending_count == 1

    full[0] = False
    node.refresh()

    assert "0=3f;1=3f" in node.schemata("web")


@pytest.mark.parametrize("left_by", ["us", "others"])
def test_a_group_that_is_gone_is_made_again_for_a_pod_that_comes_back(tmp_path: Path, left_by: str) -> None:
    node = CacheNode(tmp_path)
    node.hooks.start()
    node.run_pods(pod("web", annotations=RESCTRL))
    node.run_pods()
    node.clock.now_s += 11
    if left_by == "others":
        node.files.remove_directory(f"{node.host.resctrl.root}/koordlet-web")
    node.refresh()
    assert node.schemata("web") == "gone"

    node.run_pods(pod("web", annotations=RESCTRL))

    assert "0=3f;1=3f" in node.schemata("web")


def test_a_group_that_cannot_be_removed_is_tried_again(tmp_path: Path) -> None:
    node = CacheNode(tmp_path)
    remove, is_busy = node.files.remove_directory, [True]
    node.files.remove_directory = lambda path: (  # type: ignore[method-assign]
        FileProblem(path, FileFailure.FULL) if is_busy[0] else remove(path)
    )
    node.hooks.start()
    node.run_pods(pod("web", annotations=RESCTRL))
    node.run_pods()
    node.clock.now_s += 11
    node.refresh()
    assert node.schemata("web") != "gone"

    is_busy[0] = False
    node.refresh()

    assert node.schemata("web") == "gone"


def test_without_resctrl_annotated_pods_are_left_alone(tmp_path: Path) -> None:
    node = HookNode(tmp_path, gates="Resctrl=true")
    node.hooks.start()

    node.run_pods(pod("web", annotations=RESCTRL))

    assert node.events.pending_count == 0


@pytest.mark.parametrize(
    ("kind", "text", "group"),
    [
        (CacheNode, RESCTRL[labels.RESCTRL], "koordlet-web"),
        (CacheNode, "{", None),
        (HookNode, RESCTRL[labels.RESCTRL], None),
    ],
    ids=["a group of its own", "a broken annotation", "a node without resctrl"],
)
def test_a_container_starts_in_the_group_of_its_pod_only_where_that_was_made(
    tmp_path: Path, kind: type[HookNode], text: str, group: str | None
) -> None:
    node = CacheNode(tmp_path) if kind is CacheNode else HookNode(tmp_path, gates="Resctrl=true")
    node.hooks.start()
    node.run_pods(pod("web", annotations={labels.RESCTRL: text}))
    record = node.view.pods["web"]
    container = contexts.of_containers(contexts.of_pod(record), record)[0]

    answer = node.hooks.at_runtime(HookStage.PRE_CREATE_CONTAINER, container).response

    assert (answer.resctrl.name if answer.resctrl is not None else None) == group


# Devices


def contexts_of(node: HookNode, *, gpus: str = "", rdma: str = "", **labelled: str) -> ContainerContext:
    parts = [f'"gpu":[{gpus}]' if gpus else "", f'"rdma":[{rdma}]' if rdma else ""]
    annotations = {labels.DEVICE_ALLOCATED: "{" + ",".join(filter(None, parts)) + "}"}
    node.run_pods(pod("train", annotations=annotations, labels=labelled, resources=[native("1")]))
    record = node.view.pods["train"]
    return contexts.of_containers(contexts.of_pod(record), record)[0]


HALF = (
    '{"minor":1,"resources":{"koordinator.sh/gpu-memory-ratio":"50","koordinator.sh/gpu-memory":"8Gi",'
    '"koordinator.sh/gpu-core":"50"}}'
)
HAMI = {labels.GPU_ISOLATION_PROVIDER: "HAMi-core"}


def test_a_container_is_told_its_gpus(tmp_path: Path) -> None:
    node = HookNode(tmp_path, gates="GPUEnvInject=true")
    container = contexts_of(node, gpus='{"minor":1},{"minor":3}')

    answer = node.hooks.at_runtime(HookStage.PRE_CREATE_CONTAINER, container).response

    assert answer.environment == {"NVIDIA_VISIBLE_DEVICES": "1,3"}
    assert answer.mounts == answer.devices == ()


def test_a_gate_that_needs_a_runtime_to_ask_says_so_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        HookNode(tmp_path, gates="GPUEnvInject=true,OOMScoreAdj=true").hooks.start()

    reported = [record.getMessage() for record in caplog.records if "gate" in record.getMessage()]
    assert reported == ["gate GPUEnvInject acts only where a container runtime asks (runtime proxy, NRI)"]


def test_a_shared_gpu_comes_with_the_isolation_library_and_its_monitor(tmp_path: Path) -> None:
    gates, folder = "GPUEnvInject=true,HamiCoreVGPUMonitor=true", f"{tmp_path}/vgpu"
    node = HookNode(tmp_path, gates=gates, hooks=HookConfig(hami_core_library=f"{folder}/lib.so"))
    container = contexts_of(node, gpus=HALF, **HAMI)

    answer = node.hooks.at_runtime(HookStage.PRE_CREATE_CONTAINER, container).response

    assert answer.environment["LD_PRELOAD"] == f"{folder}/lib.so"
    assert answer.environment["CUDA_DEVICE_MEMORY_SHARED_CACHE"] == f"{folder}/train_c0.cache"
    assert answer.mounts == (
        BindMount(f"{folder}/lib.so", f"{folder}/lib.so"),
        BindMount("/tmp/vgpulock", "/tmp/vgpulock"),
        BindMount(f"{folder}/containers/train_c0", folder),
    )
    assert (Path(folder) / "containers/train_c0").stat().st_mode & 0o777 == 0o777


RDMA = (
    '{"minor":0,"resources":{},"id":"0000:01:00.0","extension":{"vfs":[{"minor":1,"busID":"0000:01:00.2"}]}}'
)


WHOLE_CARD = '{"minor":0,"resources":{},"id":"0000:01:00.2"}'


@pytest.mark.parametrize("card", [RDMA, WHOLE_CARD], ids=["a virtual function", "the card itself"])
def test_a_container_gets_the_device_files_of_its_virtual_functions_or_of_the_card(
    tmp_path: Path, card: str
) -> None:
    host_tree.write(
        tmp_path,
        {
            "sys/class/misc/rdma_cm/dev": "10:58",
            "sys/class/infiniband_verbs/uverbs2/dev": "231:194",
            "sys/bus/pci/devices/0000:01:00.2/infiniband_verbs/uverbs2/dev": "231:194",
        },
    )
    node = HookNode(tmp_path, gates="RDMADeviceInject=true")
    container = contexts_of(node, rdma=card)

    answer = node.hooks.at_runtime(HookStage.PRE_CREATE_CONTAINER, container).response

    assert answer.devices == (
        DeviceNode("/dev/infiniband/rdma_cm", 10, 58),
        DeviceNode("/dev/infiniband/uverbs2", 231, 194),
    )


def test_a_container_without_devices_gets_nothing_and_no_hook_fails(tmp_path: Path) -> None:
    node = HookNode(tmp_path, gates="RDMADeviceInject=true,GPUEnvInject=true")
    node.run_pods(pod("web", resources=[native("1")]))
    record = node.view.pods["web"]
    container = contexts.of_containers(contexts.of_pod(record), record)[0]

    result = node.hooks.at_runtime(HookStage.PRE_CREATE_CONTAINER, container)

    assert result.errors == ()
    assert not (result.response.devices or result.response.environment or result.response.mounts)


@pytest.mark.parametrize("text", [RDMA, RDMA.replace("0000:01:00.2", "../../etc"), '{"minor":"x"}'])
def test_a_device_that_is_not_there_is_an_error_of_its_hook_alone(tmp_path: Path, text: str) -> None:
    node = HookNode(tmp_path, gates="RDMADeviceInject=true,GPUEnvInject=true")
    container = contexts_of(node, rdma=text)

    result = node.hooks.at_runtime(HookStage.PRE_CREATE_CONTAINER, container)

    assert result.errors
    assert result.response.devices == ()
    assert "CPUSetAllocator" in {answer.hook for answer in result.answers}
    reported = "\n".join(node.shared.metrics.hook_invoked.lines())
    for hook, status in (("RDMADeviceInject", "failed"), ("CPUSetAllocator", "succeeded")):
        assert f'_count{{node="n1",hook="{hook}",stage="PreCreateContainer",status="{status}"}} 1' in reported


# Stages


def test_hooks_of_a_stage_run_by_name_and_their_answers_add_up(tmp_path: Path) -> None:
    gates = "GPUEnvInject=true,CPUNormalization=true"
    node = HookNode(tmp_path, gates=gates)
    node.hooks.start()
    node.node(cpu_normalization_ratio="1.25")
    container = contexts_of(node, gpus='{"minor":1}')

    result = node.hooks.at_runtime(HookStage.PRE_CREATE_CONTAINER, container)

    hooks = [answer.hook for answer in result.answers]
    assert hooks == sorted(hooks)
    assert result.response.quota_us == 80_000
    assert result.response.environment == {"NVIDIA_VISIBLE_DEVICES": "1"}
    assert HookStage.PRE_CREATE_CONTAINER in node.hooks.registry.stages()
    assert HookStage.POST_STOP_CONTAINER not in node.hooks.registry.stages()


def test_answers_about_a_pod_are_written_to_its_own_group(tmp_path: Path) -> None:
    node = HookNode(tmp_path)
    node.hooks.start()
    node.policy(classes(ls=LS_ON))
    node.run_pods(pod("web"))
    context = contexts.of_pod(node.view.pods["web"])
    group = f"{BURSTABLE}/podnew"
    node.group(group)
    fresh = msgspec.structs.replace(context, uid="new", group=group)

    node.hooks.at_runtime(HookStage.PRE_RUN_POD_SANDBOX, fresh)

    assert node.says(Knob.CPU_BVT, group) == "2"


def test_with_policy_fail_the_first_failure_stops_the_others(tmp_path: Path) -> None:
    for policy, count in (("Ignore", 2), ("Fail", 1)):
        node = HookNode(tmp_path, hooks=HookConfig(plugin_failure_policy=policy))
        broken = PodContext(
            namespace="shop",
            name="x",
            uid="x",
            labels={"koordinator.sh/qosClass": "LS"},
            annotations={labels.RESOURCE_STATUS: "{", labels.CPU_QOS: "{"},
            group=f"{BURSTABLE}/podx",
            kube_qos=KubeQoS.BURSTABLE,
        )

        result = node.hooks.at_runtime(HookStage.PRE_RUN_POD_SANDBOX, broken)

        assert len(result.errors) == count
