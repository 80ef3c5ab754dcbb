// in pkg/koordlet/util
package util

import (
	"fmt"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	slov1alpha1 "github.com/koordinator-sh/koordinator/apis/slo/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/util/system"
)

type pathQuestion struct {
	Op               string                          `json:"op"`
	Driver           string                          `json:"driver"`
	KubeQOS          corev1.PodQOSClass              `json:"kubeQOS"`
	UID              string                          `json:"uid"`
	ContainerID      string                          `json:"containerID"`
	PodDir           string                          `json:"podDir"`
	Dirname          string                          `json:"dirname"`
	Root             string                          `json:"root"`
	CgroupVersion    int                             `json:"cgroupVersion"`
	Kind             string                          `json:"kind"`
	Dir              string                          `json:"dir"`
	HostApplication  slov1alpha1.HostApplicationSpec `json:"hostApplication"`
	PodSubdirs       []string                        `json:"podSubdirs"`
	InitContainerIDs []string                        `json:"initContainerIDs"`
	ContainerIDs     []string                        `json:"containerIDs"`
	RootCpuset       string                          `json:"rootCpuset"`
	ContainerCpusets map[string]string               `json:"containerCpusets"`
}

var kindsOfFiles = map[string]system.ResourceType{
	"cpu-usage": system.CPUAcctUsageName, "cpu-stat": system.CPUStatName, "cpu-quota": system.CPUCFSQuotaName,
	"cpu-period": system.CPUCFSPeriodName, "cpu-shares": system.CPUSharesName, "cpu-burst": system.CPUBurstName,
	"threads": system.CPUTasksName, "procs": system.CPUProcsName, "cpuset": system.CPUSetCPUSName,
	"cpuset-effective": system.CPUSetCPUSEffectiveName, "memory-limit": system.MemoryLimitName,
	"memory-usage": system.MemoryUsageName, "memory-stat": system.MemoryStatName,
	"memory-numa-stat": system.MemoryNumaStatName, "cpu-pressure": system.CPUAcctCPUPressureName,
	"memory-pressure": system.CPUAcctMemoryPressureName, "io-pressure": system.CPUAcctIOPressureName,
	"idle-page-stats": system.MemoryIdlePageStatsName,
}

var wrong = map[string]bool{"error": true}

func init() { answering.Area("cgroup-paths", answering.Of(cgroupPaths)) }

func cgroupPaths(asked pathQuestion) (any, error) {
	if asked.Driver == "" {
		asked.Driver = string(system.Systemd)
	}
	system.SetupCgroupPathFormatter(system.CgroupDriverType(asked.Driver))
	system.UseCgroupsV2.Store(asked.CgroupVersion == 2)
	defer system.UseCgroupsV2.Store(false)
	name, value, err := asked.answer()
	if err != nil {
		return wrong, nil
	}
	answer := map[string]any{name: value}
	if asked.Op == "container-dirname" {
		answer["runtime"], _, _ = system.CgroupPathFormatter.ContainerDirFn(asked.ContainerID)
	}
	return answer, nil
}

func (asked pathQuestion) answer() (name string, value any, err error) {
	switch asked.Op {
	case "qos-dir":
		return "dir", GetPodQoSRelativePath(asked.KubeQOS), nil
	case "pod-dir":
		return "dir", GetPodCgroupParentDir(asked.pod()), nil
	case "container-dirname":
		_, name, err := system.CgroupPathFormatter.ContainerDirFn(asked.ContainerID)
		return "dirname", name, err
	case "container-dir":
		dir, err := GetContainerCgroupParentDirByID(asked.PodDir, asked.ContainerID)
		return "dir", dir, err
	case "parse-pod-dirname":
		id, err := ParsePodID(asked.Dirname)
		return "id", id, err
	case "parse-container-dirname":
		id, err := ParseContainerID(asked.Dirname)
		return "id", id, err
	case "file":
		path, err := asked.file()
		return "path", path, err
	case "host-app-dir":
		return "dir", GetHostAppCgroupRelativePath(&asked.HostApplication), nil
	case "kube-qos-of-dir":
		return "kubeQOS", GetKubeQoSByCgroupParent(asked.Dir), nil
	}
	files := system.NewFiles()
	defer files.Gone()
	if asked.Op == "sandbox" {
		return asked.sandbox(files)
	}
	root := GetPodQoSRelativePath(corev1.PodQOSBestEffort)
	resource, err := system.GetCgroupResource(system.CPUSetCPUSName)
	if err != nil {
		return "", nil, err
	}
	files.Put(resource.Path(root), asked.RootCpuset)
	for dir, cpus := range asked.ContainerCpusets {
		files.Put(resource.Path(filepath.Join(root, dir)), cpus)
	}
	cpus, err := GetBECgroupCurCPUSet()
	return "cpus", append([]int32{}, cpus...), err
}

func (asked pathQuestion) pod() *corev1.Pod {
	pod := &corev1.Pod{Status: corev1.PodStatus{QOSClass: asked.KubeQOS}}
	pod.UID = types.UID(asked.UID)
	return pod
}

func (asked pathQuestion) file() (string, error) {
	system.Conf.CgroupRootDir = asked.Root
	if asked.Kind == "perf-dir" {
		base := strings.TrimSuffix(filepath.Base(asked.Dir), ".scope")
		runtime, id, _ := strings.Cut(strings.TrimPrefix(base, "cri-"), "-")
		return GetContainerCgroupPerfPath(filepath.Dir(asked.Dir), &corev1.ContainerStatus{ContainerID: runtime + "://" + id})
	}
	resource, err := system.GetCgroupResource(kindsOfFiles[asked.Kind])
	if err != nil {
		return "", err
	}
	return resource.Path(asked.Dir), nil
}

func (asked pathQuestion) sandbox(files system.Files) (string, any, error) {
	pod := asked.pod()
	pod.Status.QOSClass, pod.UID = corev1.PodQOSBurstable, "uid"
	group := filepath.Join(system.GetRootCgroupSubfsDir(system.CgroupCPUSetDir), GetPodCgroupParentDir(pod))
	files.Put(filepath.Join(group, "cpuset.cpus"), "")
	for _, name := range asked.PodSubdirs {
		files.Put(filepath.Join(group, name, "cpuset.cpus"), "")
	}
	status := func(ids []string) (found []corev1.ContainerStatus) {
		for i, id := range ids {
			found = append(found, corev1.ContainerStatus{Name: fmt.Sprint(i), ContainerID: id})
		}
		return found
	}
	pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses = status(asked.InitContainerIDs), status(asked.ContainerIDs)
	id, err := GetPodSandboxContainerID(pod)
	return "containerID", id, err
}
