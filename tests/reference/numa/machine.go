// in pkg/scheduler/plugins/nodenumaresource
package nodenumaresource

import (
	"context"
	"fmt"
	"sort"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fwktype "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/koordinator-sh/koordinator/apis/extension"
	schedulingconfig "github.com/koordinator-sh/koordinator/pkg/scheduler/apis/config"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/frameworkext"
	"github.com/koordinator-sh/koordinator/pkg/util/cpuset"
)

const theNode = "node"

// regular is a machine whose CPUs count up thread by thread, core by core, NUMA node by NUMA node.
type regular struct {
	Sockets       int `json:"sockets"`
	NUMAPerSocket int `json:"numaPerSocket"`
	CoresPerNUMA  int `json:"coresPerNUMA"`
	CPUsPerCore   int `json:"cpusPerCore"`
}

func (r *regular) cpus() *CPUTopology {
	builder := NewCPUTopologyBuilder()
	if r == nil {
		return builder.Result()
	}
	for core := 0; core < r.Sockets*r.NUMAPerSocket*r.CoresPerNUMA; core++ {
		for thread := 0; thread < r.CPUsPerCore; thread++ {
			numa := core / r.CoresPerNUMA
			builder.AddCPUInfo(numa/r.NUMAPerSocket, numa, core, core*r.CPUsPerCore+thread)
		}
	}
	return builder.Result()
}

type heldPod struct {
	CPUSet string                      `json:"cpuset"`
	NUMA   map[int]corev1.ResourceList `json:"numa"`
}

// fakeHandle knows one node; whatever the topology manager is asked, it admits.
type fakeHandle struct {
	frameworkext.FrameworkExtender
	fwktype.SharedLister
	fwktype.NodeInfoLister
	info *framework.NodeInfo
}

func (f fakeHandle) SnapshotSharedLister() fwktype.SharedLister    { return f }
func (f fakeHandle) NodeInfos() fwktype.NodeInfoLister             { return f }
func (f fakeHandle) Get(nodeName string) (fwktype.NodeInfo, error) { return f.info, nil }
func (f fakeHandle) RunNUMATopologyManagerAdmit(context.Context, fwktype.CycleState, *corev1.Pod, *corev1.Node, []int,
	extension.NUMATopologyPolicy, extension.NumaTopologyExclusive, []extension.NumaNodeStatus) *fwktype.Status {
	return nil
}

// pluginOf is the plugin and its node, of which all is known but pods.
func pluginOf(options TopologyOptions, node *corev1.Node, strategy string) *Plugin {
	node.Name = theNode
	info := framework.NewNodeInfo()
	info.SetNode(node)
	topologies := NewTopologyOptionsManager()
	topologies.UpdateTopologyOptions(theNode, func(known *TopologyOptions) { *known = options })
	return &Plugin{
		handle:                 fakeHandle{info: info},
		pluginArgs:             &schedulingconfig.NodeNUMAResourceArgs{},
		topologyOptionsManager: topologies,
		resourceManager: &resourceManager{
			numaAllocateStrategy:   schedulingconfig.NUMAAllocateStrategy(strategy),
			topologyOptionsManager: topologies,
			nodeAllocations:        map[string]*NodeAllocation{},
		},
	}
}

func (p *Plugin) info() *framework.NodeInfo { return p.handle.(fakeHandle).info }

func (p *Plugin) holds(pods []heldPod) error {
	for number, pod := range pods {
		allocation, err := pod.allocation(number)
		if err != nil {
			return err
		}
		p.resourceManager.Update(theNode, allocation)
	}
	return nil
}

func (h heldPod) allocation(number int) (*PodAllocation, error) {
	cpus, err := cpuset.Parse(h.CPUSet)
	if err != nil {
		return nil, err
	}
	return &PodAllocation{UID: types.UID(fmt.Sprint(number)), CPUSet: cpus, NUMANodeResources: zonesOf(h.NUMA)}, nil
}

func zonesOf(amounts map[int]corev1.ResourceList) []NUMANodeResource {
	zones := []NUMANodeResource{}
	for numa, held := range amounts {
		zones = append(zones, NUMANodeResource{Node: numa, Resources: held})
	}
	sort.Slice(zones, func(i, j int) bool { return zones[i].Node < zones[j].Node })
	return zones
}

func amplifiedBy(ratio float64) *corev1.Node {
	if ratio == 0 {
		return &corev1.Node{}
	}
	text := fmt.Sprintf(`{"cpu": %v}`, ratio)
	annotations := map[string]string{extension.AnnotationNodeResourceAmplificationRatio: text}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: annotations}}
}

func amountsOf(held corev1.ResourceList) map[corev1.ResourceName]int64 {
	amounts := map[corev1.ResourceName]int64{}
	for name, quantity := range held {
		amounts[name] = quantity.Value()
		if name == corev1.ResourceCPU {
			amounts[name] = quantity.MilliValue()
		}
	}
	return amounts
}
