"""Names of directories lead back to what they were made from, and never out of the tree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api.qos import KubeQoS
from koordinator.api.slo import CgroupPath, HostApplicationSpec
from koordinator.host import cgroup_layout
from koordinator.host.cgroup_layout import ContainerID, Driver, Runtime
from koordinator.host.errors import ContentError, LayoutError

DRIVERS = st.sampled_from(Driver)
IDS = st.text("0123456789abcdef", min_size=8, max_size=64)


@given(DRIVERS, st.sampled_from(KubeQoS), st.uuids())
def test_a_pod_directory_leads_back_to_its_uid_and_class(
    driver: Driver, kube_qos: KubeQoS, uid: object
) -> None:
    directory = cgroup_layout.pod_dir(driver, kube_qos, str(uid))
    dirname = directory.rpartition("/")[2]

    assert cgroup_layout.pod_uid_of_dirname(driver, dirname).replace("_", "-") == str(uid)
    assert cgroup_layout.kube_qos_of_dir(directory) is kube_qos
    assert directory.startswith(cgroup_layout.class_dir(driver, kube_qos))


@given(DRIVERS, st.sampled_from([Runtime.DOCKER, Runtime.CONTAINERD, Runtime.CRI_O]), IDS)
def test_a_container_directory_leads_back_to_its_id(driver: Driver, runtime: Runtime, own: str) -> None:
    container = cgroup_layout.parse_container_id(f"{runtime}://{own}")
    dirname = cgroup_layout.container_dirname(driver, container)

    assert str(container) == f"{runtime}://{own}"
    assert cgroup_layout.container_id_of_dirname(driver, dirname) == own


@given(DRIVERS, IDS, st.lists(IDS, min_size=1, max_size=4, unique=True))
def test_the_sandbox_is_the_directory_that_no_container_has(
    driver: Driver, pause: str, others: list[str]
) -> None:
    containers = [ContainerID(Runtime.CONTAINERD, own) for own in others if own != pause]
    if not containers:
        return
    sandbox = ContainerID(Runtime.CONTAINERD, pause)
    subdirs = [cgroup_layout.container_dirname(driver, each) for each in (*containers, sandbox)]

    assert cgroup_layout.sandbox_id(driver, subdirs, containers) == str(sandbox)


def test_two_unknown_directories_are_no_sandbox() -> None:
    containers = [ContainerID(Runtime.CONTAINERD, "main")]

    with pytest.raises(LayoutError, match="2 directories"):
        cgroup_layout.sandbox_id(Driver.CGROUPFS, ["main", "a", "b"], containers)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(CgroupPath(relative_path="../../etc"), id="dots"),
        pytest.param(CgroupPath(base="Elsewhere", relative_path="x"), id="unknown base"),
        pytest.param(CgroupPath(base="KubepodsBesteffort", relative_path="../../system.slice"), id="base"),
        pytest.param(CgroupPath(base="Kubepods"), id="all pods"),
        pytest.param(CgroupPath(relative_path="/./"), id="the root itself"),
    ],
)
def test_a_host_application_cannot_leave_the_cgroup_tree(path: CgroupPath) -> None:
    with pytest.raises(LayoutError):
        cgroup_layout.host_application_dir(Driver.SYSTEMD, HostApplicationSpec(name="a", cgroup_path=path))


@given(DRIVERS, st.sampled_from(["", ".", "..", "../x", "a/b"]))
def test_a_name_that_is_none_leads_to_no_group_of_others(driver: Driver, name: str) -> None:
    container = ContainerID(Runtime.CONTAINERD, name)
    with pytest.raises(LayoutError):
        cgroup_layout.pod_dir(driver, KubeQoS.BURSTABLE, name)
    with pytest.raises(LayoutError):
        cgroup_layout.container_dir(driver, "kubepods/podx", container)


def test_the_smallest_cpu_set_is_only_known_when_all_can_be_read() -> None:
    assert cgroup_layout.smallest_cpuset("0-3", {"a/b": "1\n", "a-b/c": "2"}) == {1}

    for texts in ({"a/b": None}, {"a/b": "x"}):
        with pytest.raises(ContentError):
            cgroup_layout.smallest_cpuset("0-3", texts)


@pytest.mark.parametrize(
    ("told", "directory", "kube_qos"),
    [
        (
            "kubepods-besteffort-pod1_2.slice",
            "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1_2.slice",
            KubeQoS.BEST_EFFORT,
        ),
        (
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice",
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice",
            KubeQoS.BURSTABLE,
        ),
        ("/kubepods/besteffort/pod1-2", "kubepods/besteffort/pod1-2", KubeQoS.BEST_EFFORT),
    ],
    ids=["systemd, told by containerd", "systemd, a whole path", "cgroupfs"],
)
def test_the_cgroup_parent_that_a_runtime_is_told_leads_to_the_pods_directory(
    told: str, directory: str, kube_qos: KubeQoS
) -> None:
    found = cgroup_layout.of_cgroup_parent(told)

    assert found == directory
    assert cgroup_layout.kube_qos_of_dir(found) is kube_qos
