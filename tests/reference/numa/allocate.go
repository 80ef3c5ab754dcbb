// in pkg/scheduler/plugins/nodenumaresource
package nodenumaresource

import (
	"fmt"
	"reflect"
	"sort"

	corev1 "k8s.io/api/core/v1"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"

	"github.com/koordinator-sh/koordinator/apis/extension"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	schedulingconfig "github.com/koordinator-sh/koordinator/pkg/scheduler/apis/config"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/frameworkext/topologymanager"
	"github.com/koordinator-sh/koordinator/pkg/util/bitmask"
	"github.com/koordinator-sh/koordinator/pkg/util/cpuset"
)

type allocateQuestion struct {
	Topology           regular                     `json:"topology"`
	NUMAZones          map[int]corev1.ResourceList `json:"numaZones"`
	Ratio              float64                     `json:"cpuAmplificationRatio"`
	Strategy           string                      `json:"numaAllocateStrategy"`
	Existing           []heldPod                   `json:"existing"`
	Hint               []int                       `json:"hint"`
	Requests           corev1.ResourceList         `json:"requests"`
	NumCPUsNeeded      int                         `json:"numCPUsNeeded"`
	RequestCPUBind     bool                        `json:"requestCPUBind"`
	RequiredBindPolicy bool                        `json:"requiredBindPolicy"`
	BindPolicy         string                      `json:"bindPolicy"`
	Policy             string                      `json:"policy"`
	NUMAScoring        *struct {
		Type      string           `json:"type"`
		Resources map[string]int64 `json:"resources"`
	} `json:"numaScoring"`
}

type availableQuestion struct {
	Kind        string                      `json:"kind"`
	Topology    regular                     `json:"topology"`
	Zones       map[int]corev1.ResourceList `json:"zones"`
	Pods        []heldPod                   `json:"pods"`
	Reusable    map[int]corev1.ResourceList `json:"reusable"`
	Ratio       extension.Ratio             `json:"cpuAmplificationRatio"`
	PodCPUSets  []string                    `json:"podCPUSets"`
	MaxRefCount int                         `json:"maxRefCount"`
	Reserved    string                      `json:"reservedCPUs"`
	GivenBack   []string                    `json:"givenBack"`
}

func init() {
	answering.Area("numa-allocate", answering.Of(allocated))
	answering.Area("numa-hints-generate", answering.Of(hinted))
	answering.Area("numa-available", answering.Of(available))
}

// prepared is the plugin, and what it asks its resource manager for the pod.
func (asked allocateQuestion) prepared() (*Plugin, *ResourceOptions, error) {
	options := TopologyOptions{CPUTopology: asked.Topology.cpus(), NUMANodeResources: zonesOf(asked.NUMAZones)}
	plugin := pluginOf(options, amplifiedBy(asked.Ratio), asked.Strategy)
	if err := plugin.holds(asked.Existing); err != nil {
		return nil, nil, err
	}
	policy := schedulingconfig.CPUBindPolicy(asked.BindPolicy)
	state := &preFilterState{
		requestCPUBind: asked.RequestCPUBind, requests: asked.Requests, preferredCPUBindPolicy: policy,
		numCPUsNeeded: asked.NumCPUsNeeded,
	}
	if asked.RequiredBindPolicy {
		state.requiredCPUBindPolicy = policy
	}
	hint := topologymanager.NUMATopologyHint{}
	if asked.Hint != nil {
		mask, err := bitmask.NewBitMask(asked.Hint...)
		if err != nil {
			return nil, nil, err
		}
		hint.NUMANodeAffinity = mask
	}
	known := plugin.topologyOptionsManager.GetTopologyOptions(theNode)
	resources, err := plugin.getResourceOptions(state, plugin.info().Node(), asked.RequestCPUBind, hint, known)
	return plugin, resources, err
}

func allocated(asked allocateQuestion) (any, error) {
	plugin, options, err := asked.prepared()
	if err != nil {
		return nil, err
	}
	restored := &nodeReservationRestoreStateData{}
	found, status := tryAllocateFromNode(plugin.resourceManager, nil, restored, options, &corev1.Pod{}, plugin.info().Node())
	if !status.IsSuccess() {
		reasons := status.Reasons()
		sort.Strings(reasons)
		return map[string]any{"error": true, "reasons": reasons}, nil
	}
	numa := map[string]any{}
	for _, each := range found.NUMANodeResources {
		amounts := map[corev1.ResourceName]any{}
		for name, quantity := range each.Resources {
			amounts[name] = quantity.Value()
			if name == corev1.ResourceCPU {
				amounts[name] = quantity.String()
			}
		}
		numa[fmt.Sprint(each.Node)] = amounts
	}
	return map[string]any{"numaNodeResources": numa, "cpuset": found.CPUSet.String()}, nil
}

func hinted(asked allocateQuestion) (any, error) {
	plugin, options, err := asked.prepared()
	if err != nil {
		return nil, err
	}
	if asked.NUMAScoring != nil {
		strategy := &schedulingconfig.ScoringStrategy{Type: schedulingconfig.ScoringStrategyType(asked.NUMAScoring.Type)}
		for name, weight := range asked.NUMAScoring.Resources {
			strategy.Resources = append(strategy.Resources, schedconfig.ResourceSpec{Name: name, Weight: weight})
		}
		args := &schedulingconfig.NodeNUMAResourceArgs{ScoringStrategy: strategy}
		options.numaScorer = resourceStrategyTypeMap[strategy.Type](args)
	}
	policy := extension.NUMATopologyPolicy(asked.Policy)
	hints, err := plugin.resourceManager.GetTopologyHints(
		plugin.info().Node(), &corev1.Pod{}, options, policy, &nodeReservationRestoreStateData{})
	if err != nil {
		return nil, err
	}
	flat := map[string][]map[string]any{}
	for name, found := range hints {
		flat[name] = []map[string]any{}
		for _, each := range found {
			flat[name] = append(flat[name], map[string]any{
				"affinity": each.NUMANodeAffinity.GetBits(), "preferred": each.Preferred, "score": each.Score})
		}
	}
	answer := map[string]any{"hints": flat}
	if merged, same := mergedInAnyOrder(policy, options.topologyOptions.getNUMANodes(), hints); same {
		answer["mergedAffinity"] = merged
	}
	return answer, nil
}

// mergedInAnyOrder is the choice among hints of one provider, and whether it is the same in all orders of resources.
func mergedInAnyOrder(policy extension.NUMATopologyPolicy, numaNodes []int,
	hints map[string][]topologymanager.NUMATopologyHint) (any, bool) {
	var merge topologymanager.Policy
	switch policy {
	case extension.NUMATopologyPolicyBestEffort:
		merge = topologymanager.NewBestEffortPolicy(numaNodes)
	case extension.NUMATopologyPolicyRestricted:
		merge = topologymanager.NewRestrictedPolicy(numaNodes)
	default:
		merge = topologymanager.NewSingleNumaNodePolicy(numaNodes)
	}
	var answers []any
	topologymanager.InAllOrders([]map[string][]topologymanager.NUMATopologyHint{hints},
		func(ordered []map[string][]topologymanager.NUMATopologyHint) {
			best, _, _ := merge.Merge(ordered, "", nil)
			var bits any
			if best.NUMANodeAffinity != nil {
				bits = best.NUMANodeAffinity.GetBits()
			}
			answers = append(answers, bits)
		})
	for _, each := range answers {
		if !reflect.DeepEqual(each, answers[0]) {
			return nil, false
		}
	}
	return answers[0], true
}

func available(asked availableQuestion) (any, error) {
	options := TopologyOptions{
		CPUTopology: asked.Topology.cpus(), NUMANodeResources: zonesOf(asked.Zones),
		AmplificationRatios: map[corev1.ResourceName]extension.Ratio{corev1.ResourceCPU: asked.Ratio},
	}
	for _, cpus := range asked.PodCPUSets {
		asked.Pods = append(asked.Pods, heldPod{CPUSet: cpus})
	}
	held := NewNodeAllocation(theNode)
	for number, pod := range asked.Pods {
		allocation, err := pod.allocation(number)
		if err != nil {
			return nil, err
		}
		held.addPodAllocation(allocation, options.CPUTopology)
	}
	if asked.Kind == "numa" {
		left, used := held.getAvailableNUMANodeResources(options, asked.Reusable)
		return map[string]any{"available": byZone(left), "allocated": byZone(used)}, nil
	}
	var given []cpuset.CPUSet
	for _, text := range append([]string{asked.Reserved}, asked.GivenBack...) {
		cpus, err := cpuset.Parse(text)
		if err != nil {
			return nil, err
		}
		given = append(given, cpus)
	}
	cpus, _ := held.getAvailableCPUs(options.CPUTopology, asked.MaxRefCount, given[0], given[1:]...)
	return map[string]any{"available": cpus.String()}, nil
}

func byZone(amounts map[int]corev1.ResourceList) map[string]any {
	zones := map[string]any{}
	for numa, held := range amounts {
		zones[fmt.Sprint(numa)] = amountsOf(held)
	}
	return zones
}
