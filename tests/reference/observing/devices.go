// in pkg/koordlet/statesinformer/impl
package impl

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"

	schedulingv1alpha1 "github.com/koordinator-sh/koordinator/apis/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/client/clientset/versioned/fake"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/metriccache"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/metricsadvisor/devices/gpu"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/metricsadvisor/devices/helper"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/metricsadvisor/devices/xpu"
	koordletutil "github.com/koordinator-sh/koordinator/pkg/koordlet/util"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/util/system"
)

type knownCard struct {
	ID        string   `json:"id"`
	Minor     int32    `json:"minor"`
	Health    bool     `json:"health"`
	BusID     string   `json:"busID"`
	NodeID    int32    `json:"nodeID"`
	PCIE      string   `json:"pcie"`
	VFEnabled bool     `json:"vfEnabled"`
	VFs       []string `json:"vfs"`
}

type deviceQuestion struct {
	Op            string                  `json:"op"`
	GPUs          []knownGPU              `json:"gpus"`
	GPUModel      string                  `json:"gpuModel"`
	GPUDriver     string                  `json:"gpuDriver"`
	XPUs          koordletutil.XPUDevices `json:"xpus"`
	XPUEnforce    bool                    `json:"xpuEnforce"`
	RDMAs         []knownCard             `json:"rdmas"`
	UnhealthyGPUs map[string]struct {
		ErrCode    string `json:"errCode"`
		ErrMessage string `json:"errMessage"`
	} `json:"unhealthyGPUs"`
	Names     []string `json:"names"`
	Minors    []int    `json:"minors"`
	Processes []struct {
		PID   uint32 `json:"pid"`
		Usage []struct {
			Minor       int     `json:"minor"`
			SMUtil      *uint32 `json:"smUtil"`
			MemoryBytes uint64  `json:"memoryBytes"`
		} `json:"usage"`
	} `json:"processes"`
	PIDs    []uint32 `json:"pids"`
	Kubelet []struct {
		Namespace  string               `json:"namespace"`
		Name       string               `json:"name"`
		Containers []containerResources `json:"containers"`
	} `json:"kubelet"`
	Pods       []corev1.Pod      `json:"pods"`
	NUMANode   string            `json:"numaNode"`
	DevicePath string            `json:"devicePath"`
	Entries    []string          `json:"entries"`
	Device     string            `json:"device"`
	PortStates []string          `json:"portStates"`
	Files      map[string]string `json:"files"`
}

type containerResources struct {
	Name    string         `json:"name"`
	Devices []knownDevices `json:"devices,omitempty"`
}

type knownDevices struct {
	ResourceName string   `json:"resourceName"`
	DeviceIDs    []string `json:"deviceIds"`
}

var wrong = map[string]bool{"error": true}

func init() { answering.Area("device-report", answering.Of(deviceReport)) }

func deviceReport(asked deviceQuestion) (any, error) {
	switch asked.Op {
	case "report":
		return asked.report()
	case "gpu-model":
		nvml.Known = nil
		for _, name := range asked.Names {
			nvml.Known = append(nvml.Known, &nvml.GPU{Name: name})
		}
		model, _ := (&statesInformer{}).getGPUDriverAndModel()
		return map[string]string{"model": model}, nil
	case "gpu-usage":
		return asked.gpuUsage(), nil
	case "pod-resources":
		return asked.podResources(), nil
	case "rdma-minor":
		minor, err := system.GetRDMAMinor(asked.Device)
		if err != nil {
			return wrong, nil
		}
		return map[string]int32{"minor": minor}, nil
	}
	files := system.NewFiles()
	defer files.Gone()
	switch asked.Op {
	case "pci":
		return asked.pci(files)
	case "gpu-bus-ids":
		system.NVIDIADriverDir = files.At("driver")
		for _, entry := range asked.Entries {
			files.Put("driver/"+entry, "")
		}
		return map[string]any{"busIDs": append([]string{}, system.GetGPUDevicePCIBusIDs()...)}, nil
	case "xpu-files":
		if err := os.MkdirAll(system.Conf.XPUDeviceInfosDir, 0o755); err != nil {
			return nil, err
		}
		for name, text := range asked.Files {
			files.Put("devices/"+name, text)
		}
		found, err := xpu.GetXPUDevice(system.Conf.XPUDeviceInfosDir)
		if err != nil {
			return wrong, nil
		}
		uuids := []string{}
		for _, each := range found.(koordletutil.XPUDevices) {
			uuids = append(uuids, each.UUID)
		}
		return map[string]any{"uuids": uuids}, nil
	}
	return nil, fmt.Errorf("%s cannot be asked", asked.Op)
}

func (asked deviceQuestion) report() (any, error) {
	values := map[any]any{}
	if len(asked.GPUs) > 0 {
		values[koordletutil.GPUDeviceType] = gpusOf(asked.GPUs)
	}
	if len(asked.XPUs) > 0 {
		values[koordletutil.XPUDeviceType] = asked.XPUs
	}
	if len(asked.RDMAs) > 0 {
		cards := koordletutil.RDMADevices{}
		for _, each := range asked.RDMAs {
			card := koordletutil.RDMADeviceInfo{
				ID: each.ID, Minor: each.Minor, Health: each.Health, BusID: each.BusID, NodeID: each.NodeID, PCIE: each.PCIE,
				VFEnabled: each.VFEnabled, VFMap: map[string]*koordletutil.VirtualFunction{},
			}
			for _, id := range each.VFs {
				card.VFMap[id] = &koordletutil.VirtualFunction{ID: id}
			}
			cards = append(cards, card)
		}
		values[koordletutil.RDMADeviceType] = cards
	}
	node := NewNodeInformer()
	node.node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	client := fake.NewSimpleClientset().SchedulingV1alpha1().Devices()
	informer := &statesInformer{
		config: &Config{XPUEnforceCollectFromDeviceInfos: asked.XPUEnforce}, deviceClient: client,
		metricsCache: &metriccache.Known{Values: values}, unhealthyGPU: map[string]*unhealthyGPUInfo{},
		states:                   &PluginState{informerPlugins: map[PluginName]informerPlugin{nodeInformerName: node}},
		getGPUDriverAndModelFunc: func() (string, string) { return asked.GPUModel, asked.GPUDriver },
	}
	for id, fault := range asked.UnhealthyGPUs {
		informer.unhealthyGPU[id] = &unhealthyGPUInfo{errCode: fault.ErrCode, errMessage: fault.ErrMessage}
	}
	informer.reportDevice()
	found, err := client.Get(context.TODO(), "n", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	annotations := map[string]any{}
	for name, text := range found.Annotations {
		annotations[name] = json.RawMessage(text)
	}
	labels := found.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	return map[string]any{"devices": listedDevices(found.Spec.Devices), "labels": labels, "annotations": annotations}, nil
}

// Times are left out.
func listedDevices(devices []schedulingv1alpha1.DeviceInfo) []any {
	listed := []any{}
	for _, each := range devices {
		text, _ := json.Marshal(each)
		device := map[string]any{}
		json.Unmarshal(text, &device)
		conditions, _ := device["conditions"].([]any)
		for _, condition := range conditions {
			delete(condition.(map[string]any), "lastTransitionTime")
		}
		listed = append(listed, device)
	}
	return listed
}

func (asked deviceQuestion) gpuUsage() any {
	cards := []*nvml.GPU{}
	for _, minor := range asked.Minors {
		card := &nvml.GPU{Minor: minor}
		for _, process := range asked.Processes {
			for _, use := range process.Usage {
				if use.Minor != minor {
					continue
				}
				card.Processes = append(card.Processes, nvml.ProcessInfo{Pid: process.PID, UsedGpuMemory: use.MemoryBytes})
				if use.SMUtil != nil {
					card.Samples = append(card.Samples, nvml.ProcessUtilizationSample{Pid: process.PID, SmUtil: *use.SMUtil})
				}
			}
		}
		cards = append(cards, card)
	}
	found := map[string]map[string]float64{}
	for _, sample := range gpu.UsageOf(cards, asked.PIDs) {
		minor := sample.GetProperties()[string(metriccache.MetricPropertyGPUMinor)]
		if found[minor] == nil {
			found[minor] = map[string]float64{}
		}
		name := "memoryBytes"
		if kind := metriccache.MetricKind(sample.GetKind()); kind == metriccache.NodeMetricGPUCoreUsage || kind == metriccache.PodMetricGPUCoreUsage {
			name = "smUtil"
		}
		found[minor][name] = metriccache.ValueOf(sample)
	}
	return map[string]any{"byMinor": found}
}

func (asked deviceQuestion) podResources() any {
	response := &podresourcesapi.ListPodResourcesResponse{}
	for _, pod := range asked.Kubelet {
		listed := &podresourcesapi.PodResources{Namespace: pod.Namespace, Name: pod.Name}
		for _, container := range pod.Containers {
			one := &podresourcesapi.ContainerResources{Name: container.Name}
			for _, devices := range container.Devices {
				one.Devices = append(one.Devices, &podresourcesapi.ContainerDevices{ResourceName: devices.ResourceName, DeviceIds: devices.DeviceIDs})
			}
			listed.Containers = append(listed.Containers, one)
		}
		response.PodResources = append(response.PodResources, listed)
	}
	fillPodDevicesAllocatedByKoord(response, &corev1.PodList{Items: asked.Pods})
	answer := []any{}
	for _, pod := range response.PodResources {
		containers := []containerResources{}
		for _, container := range pod.Containers {
			one := containerResources{Name: container.Name}
			for _, devices := range container.Devices {
				one.Devices = append(one.Devices, knownDevices{devices.ResourceName, append([]string{}, devices.DeviceIds...)})
			}
			containers = append(containers, one)
		}
		answer = append(answer, map[string]any{"namespace": pod.Namespace, "name": pod.Name, "containers": containers})
	}
	return map[string]any{"podResources": answer}
}

func (asked deviceQuestion) pci(files system.Files) (any, error) {
	files.Put(filepath.Join(asked.DevicePath, "numa_node"), asked.NUMANode)
	link := filepath.Join(system.GetPCIDeviceDir(), "device")
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		return nil, err
	}
	if err := os.Symlink(files.At(asked.DevicePath), link); err != nil {
		return nil, err
	}
	node, root, _, err := helper.ParsePCIInfo("device")
	if err != nil {
		return wrong, nil
	}
	return map[string]any{"nodeID": node, "pcieID": root}, nil
}
