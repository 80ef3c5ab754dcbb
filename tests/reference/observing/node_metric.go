// in pkg/koordlet/statesinformer/impl
package impl

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/koordinator-sh/koordinator/apis/extension"
	schedulingv1alpha1 "github.com/koordinator-sh/koordinator/apis/scheduling/v1alpha1"
	slov1alpha1 "github.com/koordinator-sh/koordinator/apis/slo/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/metriccache"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/prediction"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/statesinformer"
	koordletutil "github.com/koordinator-sh/koordinator/pkg/koordlet/util"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/util/system"
)

type nodeMetricQuestion struct {
	Op             string                            `json:"op"`
	Pod            corev1.Pod                        `json:"pod"`
	NodeMetricSpec slov1alpha1.NodeMetricSpec        `json:"nodeMetricSpec"`
	NowMs          int64                             `json:"nowMs"`
	Series         []metriccache.KnownSeries         `json:"series"`
	KidledStarted  bool                              `json:"kidledStarted"`
	GPUs           []knownGPU                        `json:"gpus"`
	Pods           []*corev1.Pod                     `json:"pods"`
	HostApps       []slov1alpha1.HostApplicationSpec `json:"hostApplications"`
	Read           []string                          `json:"read"`
}

type knownGPU struct {
	UUID        string `json:"uuid"`
	Minor       int32  `json:"minor"`
	MemoryTotal uint64 `json:"memoryTotal"`
	NodeID      int32  `json:"nodeID"`
	PCIE        string `json:"pcie"`
	BusID       string `json:"busID"`
}

func gpusOf(known []knownGPU) koordletutil.GPUDevices {
	gpus := koordletutil.GPUDevices{}
	for _, gpu := range known {
		gpus = append(gpus, koordletutil.GPUDeviceInfo{
			UUID: gpu.UUID, Minor: gpu.Minor, MemoryTotal: gpu.MemoryTotal, NodeID: gpu.NodeID, PCIE: gpu.PCIE, BusID: gpu.BusID,
		})
	}
	return gpus
}

func podsInformerOf(pods []*corev1.Pod) *podsInformer {
	informer := NewPodsInformer()
	for i, pod := range pods {
		informer.podMap[fmt.Sprint(i)] = &statesinformer.PodMeta{Pod: pod}
	}
	return informer
}

func init() { answering.Area("nodemetric-report", answering.Of(nodeMetric)) }

func nodeMetric(asked nodeMetricQuestion) (any, error) {
	if asked.Op == "class" {
		return map[string]any{
			"priority": extension.GetPodPriorityClassWithDefault(&asked.Pod), "qos": extension.GetPodQoSClassWithDefault(&asked.Pod),
		}, nil
	}
	informer := NewNodeMetricInformer()
	informer.updateMetricSpec(&slov1alpha1.NodeMetric{Spec: asked.NodeMetricSpec})
	policy := informer.getNodeMetricSpec().CollectPolicy
	if asked.Op == "policy" {
		durations := []string{}
		for _, each := range policy.NodeAggregatePolicy.Durations {
			durations = append(durations, brief(each.Duration))
		}
		return map[string]any{
			"reportIntervalSeconds":    informer.getNodeMetricReportInterval().Seconds(),
			"aggregateDurationSeconds": informer.getNodeMetricAggregateDuration().Seconds(),
			"durations":                durations, "nodeMemoryCollectPolicy": *policy.NodeMemoryCollectPolicy,
		}, nil
	}
	values := map[any]any{}
	if len(asked.GPUs) > 0 {
		values[koordletutil.GPUDeviceType] = gpusOf(asked.GPUs)
	}
	informer.metricCache = &metriccache.Known{Series: asked.Series, Values: values}
	informer.podsInformer, informer.nodeInformer = podsInformerOf(asked.Pods), NewNodeInformer()
	informer.nodeSLOInformer = NewNodeSLOInformer()
	informer.nodeSLOInformer.nodeSLO = &slov1alpha1.NodeSLO{Spec: slov1alpha1.NodeSLOSpec{HostApplications: asked.HostApps}}
	informer.predictorFactory = prediction.NewEmptyPredictorFactory()
	system.SetIsStartColdMemory(asked.KidledStarted)
	timeNow = func() time.Time { return time.UnixMilli(asked.NowMs) }
	node, pods, hostApps, _ := informer.collectMetric()
	return reported{len(asked.GPUs) > 0}.parts(asked.Read, node, pods, hostApps)
}

// Durations of the questions are like `5m`.
func brief(duration time.Duration) string {
	text := duration.String()
	for _, zero := range []string{"0s", "0m"} {
		if len(text) > 2 && strings.HasSuffix(text, zero) && strings.ContainsAny(text[len(text)-3:len(text)-2], "mh") {
			text = strings.TrimSuffix(text, zero)
		}
	}
	return text
}

// GPUs are told only where any are known.
type reported struct{ hasGPUs bool }

func (r reported) parts(read []string, node *slov1alpha1.NodeMetricInfo, pods []*slov1alpha1.PodMetricInfo, hostApps []*slov1alpha1.HostApplicationMetricInfo) (any, error) {
	podsMetric, hostAppMetric := []any{}, []any{}
	for _, pod := range pods {
		podsMetric = append(podsMetric, map[string]any{
			"namespace": pod.Namespace, "name": pod.Name, "priority": pod.Priority, "qos": pod.QoS,
			"podUsage": usageOf(pod.PodUsage, r.hasGPUs),
		})
	}
	for _, app := range hostApps {
		hostAppMetric = append(hostAppMetric, map[string]any{
			"name": app.Name, "priority": app.Priority, "qos": app.QoS, "usage": usageOf(app.Usage, false),
		})
	}
	all := map[string]any{
		"nodeUsage": usageOf(node.NodeUsage, r.hasGPUs), "systemUsage": usageOf(node.SystemUsage, false),
		"aggregatedNodeUsages":   aggregatedOf(node.AggregatedNodeUsages, r.hasGPUs),
		"aggregatedSystemUsages": aggregatedOf(node.AggregatedSystemUsages, false),
		"podsMetric":             podsMetric, "hostApplicationMetric": hostAppMetric,
	}
	answer := map[string]any{}
	for _, name := range read {
		part, found := all[name]
		if !found {
			return nil, fmt.Errorf("%s is not reported", name)
		}
		answer[name] = part
	}
	return answer, nil
}

func aggregatedOf(usages []slov1alpha1.AggregatedUsage, withDevices bool) []any {
	found := []any{}
	for _, each := range usages {
		usage := map[string]any{}
		for how, of := range each.Usage {
			usage[string(how)] = usageOf(of, withDevices)
		}
		found = append(found, map[string]any{"duration": brief(each.Duration.Duration), "usage": usage})
	}
	return found
}

func usageOf(of slov1alpha1.ResourceMap, withDevices bool) map[string]any {
	if len(of.ResourceList) == 0 && len(of.Devices) == 0 {
		return map[string]any{}
	}
	usage := map[string]any{"cpuMilli": of.Cpu().MilliValue(), "memoryBytes": of.Memory().Value()}
	if withDevices {
		devices := []any{}
		for _, each := range of.Devices {
			devices = append(devices, map[string]any{
				"uuid": each.UUID, "minor": each.Minor, "gpuCore": amountOfDevice(each, extension.ResourceGPUCore),
				"gpuMemoryBytes": amountOfDevice(each, extension.ResourceGPUMemory),
				"gpuMemoryRatio": amountOfDevice(each, extension.ResourceGPUMemoryRatio),
			})
		}
		usage["devices"] = devices
	}
	return usage
}

func amountOfDevice(device schedulingv1alpha1.DeviceInfo, name corev1.ResourceName) int64 {
	amount := device.Resources[name]
	return amount.Value()
}
