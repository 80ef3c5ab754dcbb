// in pkg/scheduler/plugins/nodenumaresource
package nodenumaresource

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/koordinator-sh/koordinator/pkg/answering"
	schedulingconfig "github.com/koordinator-sh/koordinator/pkg/scheduler/apis/config"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/frameworkext/topologymanager"
	"github.com/koordinator-sh/koordinator/pkg/util/cpuset"
)

type scoreQuestion struct {
	Kind     string `json:"kind"`
	Strategy struct {
		Type      string                     `json:"type"`
		Resources []schedconfig.ResourceSpec `json:"resources"`
	} `json:"strategy"`
	NodeAllocatable corev1.ResourceList `json:"nodeAllocatable"`
	NodeRequested   corev1.ResourceList `json:"nodeRequested"`
	Ratio           float64             `json:"cpuAmplificationRatio"`
	PinnedCPUs      int                 `json:"pinnedCPUs"`
	PodRequests     corev1.ResourceList `json:"podRequests"`
	PodCpuset       bool                `json:"podCpuset"`
	Zones           []struct {
		Node      int                 `json:"node"`
		Capacity  corev1.ResourceList `json:"capacity"`
		Allocated corev1.ResourceList `json:"allocated"`
	} `json:"zones"`
	AllocatedZones []int `json:"allocatedZones"`
}

type amplifiedQuestion struct {
	PodCPU        resource.Quantity `json:"podCPU"`
	PodCpuset     bool              `json:"podCpuset"`
	Allocatable   resource.Quantity `json:"nodeAllocatableCPU"`
	Ratio         float64           `json:"cpuAmplificationRatio"`
	NodeRequested resource.Quantity `json:"nodeRequestedCPU"`
	PinnedCPUs    int               `json:"pinnedCPUs"`
}

func init() {
	answering.Area("numa-score", answering.Of(scored))
	answering.Area("numa-amplified-filter", answering.Of(amplifiedFits))
}

const elsewhere = 60 // a NUMA node without a zone, so that what zones hold is as the question says

// pinned is a plugin on a node on which pods hold so many CPUs.
func pinned(count int, node *corev1.Node, options TopologyOptions) (*Plugin, error) {
	builder := NewCPUTopologyBuilder()
	for cpu := 0; cpu <= count; cpu++ {
		builder.AddCPUInfo(0, elsewhere, cpu, cpu)
	}
	options.CPUTopology = builder.Result()
	plugin := pluginOf(options, node, "")
	if count == 0 {
		return plugin, nil
	}
	return plugin, plugin.holds([]heldPod{{CPUSet: fmt.Sprintf("0-%d", count-1)}})
}

func scored(asked scoreQuestion) (any, error) {
	node := amplifiedBy(asked.Ratio)
	node.Status.Allocatable = asked.NodeAllocatable
	options := TopologyOptions{}
	plugin, err := pinned(asked.PinnedCPUs, node, options)
	if err != nil {
		return nil, err
	}
	info := plugin.info()
	info.Requested = framework.NewResource(asked.NodeRequested)
	strategy := schedulingconfig.ScoringStrategyType(asked.Strategy.Type)
	plugin.scorer = resourceStrategyTypeMap[strategy](&schedulingconfig.NodeNUMAResourceArgs{
		ScoringStrategy: &schedulingconfig.ScoringStrategy{Type: strategy, Resources: asked.Strategy.Resources}})
	state := &preFilterState{requests: asked.PodRequests}
	resources, err := plugin.getResourceOptions(state, node, asked.PodCpuset, topologymanager.NUMATopologyHint{},
		plugin.topologyOptionsManager.GetTopologyOptions(theNode))
	if err != nil {
		return nil, err
	}
	if asked.Kind == "node" {
		score, status := plugin.scoreWithAmplifiedCPUs(state, info, resources)
		return map[string]int64{"score": score}, status.AsError()
	}
	held := plugin.resourceManager.GetNodeAllocation(theNode)
	for _, zone := range asked.Zones {
		resources.topologyOptions.NUMANodeResources = append(resources.topologyOptions.NUMANodeResources,
			NUMANodeResource{Node: zone.Node, Resources: zone.Capacity}) // as amplified already
		held.allocatedResources[zone.Node] = &NUMANodeResource{Node: zone.Node, Resources: zone.Allocated}
	}
	allocation := &PodAllocation{}
	for _, zone := range asked.AllocatedZones {
		allocation.NUMANodeResources = append(allocation.NUMANodeResources, NUMANodeResource{Node: zone})
	}
	if asked.PodCpuset {
		allocation.CPUSet = cpuset.NewCPUSet(asked.PinnedCPUs)
	}
	allocatable, requested := plugin.calculateAllocatableAndRequested(theNode, info, allocation, resources)
	score, status := plugin.scorer.score(requested, allocatable, framework.NewResource(resources.requests))
	return map[string]int64{"score": score}, status.AsError()
}

func amplifiedFits(asked amplifiedQuestion) (any, error) {
	node := amplifiedBy(asked.Ratio)
	node.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: asked.Allocatable}
	plugin, err := pinned(asked.PinnedCPUs, node, TopologyOptions{})
	if err != nil {
		return nil, err
	}
	plugin.info().Requested = &framework.Resource{MilliCPU: asked.NodeRequested.MilliValue()}
	status := plugin.filterAmplifiedCPUs(asked.PodCPU.MilliValue(), plugin.info(), asked.PodCpuset)
	return map[string]any{"fits": status.IsSuccess(), "reason": status.Message()}, nil
}
