// in pkg/util/transformer
package transformer

import (
	"encoding/json"
	"errors"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/koordinator-sh/koordinator/apis/extension"
	schedulingv1alpha1 "github.com/koordinator-sh/koordinator/apis/scheduling/v1alpha1"
	slov1alpha1 "github.com/koordinator-sh/koordinator/apis/slo/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/util"
)

// ReadQuestion is the part of an object that a reader looks at.
type ReadQuestion struct {
	Read        string            `json:"read"`
	Annotations map[string]string `json:"annotations"`
	Labels      map[string]string `json:"labels"`
	Name        string            `json:"name"`
	Phase       corev1.PodPhase   `json:"phase"`
	Spec        struct {
		SchedulerName string              `json:"schedulerName"`
		Max           corev1.ResourceList `json:"max"`
	} `json:"spec"`
}

func (q ReadQuestion) meta() metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: q.Name, Labels: q.Labels, Annotations: q.Annotations}
}

func (q ReadQuestion) Pod() *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: q.meta()}
	pod.Spec.SchedulerName, pod.Status.Phase = q.Spec.SchedulerName, q.Phase
	return pod
}

func (q ReadQuestion) Node() *corev1.Node { return &corev1.Node{ObjectMeta: q.meta()} }

type Reader func(ReadQuestion) (any, error)

// Readers has those of this package and what others add.
var Readers = map[string]Reader{
	"system-qos-exclusive": func(q ReadQuestion) (any, error) {
		found, err := extension.GetSystemQOSResource(q.Annotations)
		return err == nil && found.IsCPUSetExclusive(), err
	},
	"cpu-normalization-ratio":   func(q ReadQuestion) (any, error) { return extension.GetCPUNormalizationRatio(q.Node()) },
	"cpu-normalization-enabled": func(q ReadQuestion) (any, error) { return extension.GetCPUNormalizationEnabled(q.Node()) },
	"amplification-ratio-of": func(q ReadQuestion) (any, error) {
		return extension.GetNodeResourceAmplificationRatio(q.Annotations, corev1.ResourceName(q.Name))
	},
	"usage-thresholds": func(q ReadQuestion) (any, error) {
		found, err := extension.GetCustomUsageThresholds(q.Node())
		if err != nil || found.AggregatedUsage == nil || found.AggregatedUsage.UsageAggregatedDuration == nil {
			return found, err
		}
		seconds := found.AggregatedUsage.UsageAggregatedDuration.Seconds()
		found.AggregatedUsage.UsageAggregatedDuration = nil
		answer, err := asMap(found)
		if err == nil {
			answer["aggregatedUsage"].(map[string]any)["usageAggregatedDuration"] = seconds
		}
		return answer, err
	},
	"third-party-by-priority": func(q ReadQuestion) (any, error) {
		return slov1alpha1.GetThirdPartyAllocatedResByPriority(q.Annotations, extension.PriorityClass(q.Name))
	},
	"node-cpu-bind-policy": func(q ReadQuestion) (any, error) {
		kubelet, err := extension.GetKubeletCPUManagerPolicy(q.Annotations)
		return extension.GetNodeCPUBindPolicy(q.Labels, kubelet), err
	},
	"gpu-partitions": func(q ReadQuestion) (any, error) {
		return extension.GetGPUPartitionTable(&schedulingv1alpha1.Device{ObjectMeta: q.meta()})
	},
	"gpu-partition-policy":           func(q ReadQuestion) (any, error) { return extension.GetGPUPartitionPolicy(q.Node()), nil },
	"network-topology-spec":          func(q ReadQuestion) (any, error) { return extension.GetNetworkTopologySpec(q.Pod()) },
	"network-topology-index":         func(q ReadQuestion) (any, error) { return extension.GetPodNetworkTopologyIndex(q.Pod()) },
	"scheduling-hint":                func(q ReadQuestion) (any, error) { return extension.GetSchedulingHint(q.Pod()) },
	"load-estimated-scaling-factors": func(q ReadQuestion) (any, error) { return extension.GetCustomEstimatedScalingFactors(q.Pod()), nil },
	"load-estimated-seconds-after-pod-scheduled": func(q ReadQuestion) (any, error) {
		return extension.GetCustomEstimatedSecondsAfterPodScheduled(q.Pod()), nil
	},
	"load-estimated-seconds-after-initialized": func(q ReadQuestion) (any, error) {
		return extension.GetCustomEstimatedSecondsAfterInitialized(q.Pod()), nil
	},
	"reservation-allocated": func(q ReadQuestion) (any, error) { return extension.GetReservationAllocated(q.Pod()) },
	"cpu-burst":             func(q ReadQuestion) (any, error) { return slov1alpha1.GetPodCPUBurstConfig(q.Pod()) },
	"cpu-qos": func(q ReadQuestion) (any, error) {
		return slov1alpha1.GetPodCPUQoSConfigByAttr(q.Labels, q.Annotations)
	},
	"memory-qos":       func(q ReadQuestion) (any, error) { return slov1alpha1.GetPodMemoryQoSConfig(q.Pod()) },
	"eviction-enabled": func(q ReadQuestion) (any, error) { return extension.PodEvictEnabled(q.Pod()), nil },
	"core-sched": func(q ReadQuestion) (any, error) {
		return map[string]any{"groupID": slov1alpha1.GetCoreSchedGroupID(q.Labels), "policy": slov1alpha1.GetCoreSchedPolicy(q.Labels)}, nil
	},
	"replace-resources": func(q ReadQuestion) (any, error) {
		erase, replace := extension.GetPodReplaceResourcesConfig(q.Pod())
		return map[string]any{"erase": sorted(erase), "replace": replace}, nil
	},
	"scheduler-name":      func(q ReadQuestion) (any, error) { return extension.GetSchedulerName(q.Pod()), nil },
	"reservation-ignored": func(q ReadQuestion) (any, error) { return extension.IsReservationIgnored(q.Pod()), nil },
	"pod-inactive":        func(q ReadQuestion) (any, error) { return util.IsPodInactive(q.Pod()), nil },
	"gang-total-number":   func(q ReadQuestion) (any, error) { return extension.GetGangTotalNum(q.Pod()) },
	"gang-waiting-time": func(q ReadQuestion) (any, error) {
		found, err := extension.GetGangWaitTime(q.Pod())
		return found.Seconds(), err
	},
	"gang-match-policy":   func(q ReadQuestion) (any, error) { return extension.GetGangMatchPolicy(q.Pod()), nil },
	"pod-non-preemptible": func(q ReadQuestion) (any, error) { return extension.IsPodNonPreemptible(q.Pod()), nil },
}

func init() {
	of("node-reservation", extension.GetNodeReservation)
	of("system-qos-resource", extension.GetSystemQOSResource)
	of("network-bandwidth", extension.GetNodeTotalBandwidth)
	of("amplification-ratio", extension.GetNodeResourceAmplificationRatios)
	of("raw-allocatable", extension.GetNodeRawAllocatable)
	of("origin-extended-allocatable", slov1alpha1.GetOriginExtendedAllocatable)
	of("third-party-allocations", slov1alpha1.GetThirdPartyAllocations)
	of("cpu-topology", extension.GetCPUTopology)
	of("cpu-basic-info", extension.GetCPUBasicInfo)
	of("cpu-shared-pools", extension.GetNodeCPUSharePools)
	of("be-cpu-shared-pools", extension.GetNodeBECPUSharePools)
	of("pod-cpu-allocs", extension.GetPodCPUAllocs)
	of("kubelet-cpu-manager-policy", extension.GetKubeletCPUManagerPolicy)
	of("resource-spec", extension.GetResourceSpec)
	of("numa-topology-spec", extension.GetNUMATopologySpec)
	of("resource-status", extension.GetResourceStatus)
	of("device-allocated", extension.GetDeviceAllocations)
	of("device-allocate-hint", extension.GetDeviceAllocateHints)
	of("device-joint-allocate", extension.GetDeviceJointAllocate)
	of("gpu-partition-spec", extension.GetGPUPartitionSpec)
	of("reservation-affinity", extension.GetReservationAffinity)
	of("reservation-restricted-options", extension.GetReservationRestrictedOptions)
	of("exact-match-reservation", extension.GetExactMatchReservationSpec)
	of("reservation-owners", extension.GetReservationOwners)
	of("reservation-current-owner", extension.GetReservationCurrentOwner)
	of("extended-resource-spec", extension.GetExtendedResourceSpec)
	of("resctrl", extension.GetResctrlInfo)
	of("soft-eviction", extension.GetSoftEvictionSpec)
	of("eviction-cost", extension.GetEvictionCost)
	answering.Area("api-annotations-node", answering.Of(read))
	answering.Area("api-annotations-pod", answering.Of(read))
}

// of adds a reader that looks at annotations only.
func of[T any](name string, get func(map[string]string) (T, error)) {
	Readers[name] = func(q ReadQuestion) (any, error) { return get(q.Annotations) }
}

func read(asked ReadQuestion) (any, error) {
	reader := Readers[asked.Read]
	if reader == nil {
		return nil, errors.New("nobody reads " + asked.Read)
	}
	if asked.Annotations == nil {
		asked.Annotations = map[string]string{}
	}
	found, err := reader(asked)
	if err != nil {
		return map[string]bool{"error": true}, nil
	}
	return map[string]any{"result": found}, nil
}

// sorted has each name once.
func sorted(names []corev1.ResourceName) []string {
	found := sets.New[string]()
	for _, name := range names {
		found.Insert(string(name))
	}
	return sets.List(found)
}

func asMap(given any) (map[string]any, error) {
	text, err := json.Marshal(given)
	if err != nil {
		return nil, err
	}
	found := map[string]any{}
	return found, json.Unmarshal(text, &found)
}
