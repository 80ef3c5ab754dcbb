// in pkg/scheduler/plugins/coscheduling/core
package core

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	fwktype "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/helper"

	"github.com/koordinator-sh/koordinator/apis/extension"
	schedulingv1alpha1 "github.com/koordinator-sh/koordinator/apis/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/frameworkext"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/frameworkext/networktopology"
)

type rackNode struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels"`
	CPU    int64             `json:"cpu"`
}

type rackPod struct {
	Name     string `json:"name"`
	Node     string `json:"node"`
	CPU      int64  `json:"cpu"`
	Index    any    `json:"index"`
	Selector string `json:"selector"`
}

type topologyQuestion struct {
	Nodes      []rackNode                               `json:"nodes"`
	Layers     []schedulingv1alpha1.NetworkTopologySpec `json:"networkTopologySpec"`
	Pods       []rackPod                                `json:"pods"`
	Rules      []extension.NetworkTopologyGatherRule    `json:"gatherStrategy"`
	Existing   []rackPod                                `json:"existing"`
	Selector   string                                   `json:"selector"`
	NodeSlots  map[string]int64                         `json:"nodeSlots"`
	Candidates []string                                 `json:"candidates"`
}

func init() {
	answering.Area("topology-placement", answering.Of(placed))
	answering.Area("topology-score", answering.Of(scored))
}

func networkOf(layers []schedulingv1alpha1.NetworkTopologySpec, nodes []rackNode) (tree, error) {
	if layers == nil {
		layers = []schedulingv1alpha1.NetworkTopologySpec{
			{TopologyLayer: "SpineLayer", LabelKey: []string{"network.topology.nvidia.com/spine"}},
			{TopologyLayer: "BlockLayer", LabelKey: []string{"network.topology.nvidia.com/block"}, ParentTopologyLayer: "SpineLayer"},
			{TopologyLayer: schedulingv1alpha1.NodeTopologyLayer, ParentTopologyLayer: "BlockLayer"},
		}
	}
	described := &schedulingv1alpha1.ClusterNetworkTopology{Spec: schedulingv1alpha1.ClusterNetworkTopologySpec{NetworkTopologySpec: layers}}
	grown, err := networktopology.NewTree(described)
	if err != nil {
		return tree{}, err
	}
	for _, each := range nodes {
		grown.AddNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: each.Name, Labels: each.Labels}})
	}
	return tree{snapshot: grown.GetSnapshot()}, nil
}

func nodesOf(given []rackNode) []*corev1.Node {
	var nodes []*corev1.Node
	for _, each := range given {
		cpu := corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(each.CPU, resource.DecimalSI)}
		nodes = append(nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: each.Name, Labels: each.Labels},
			Status: corev1.NodeStatus{Allocatable: cpu}})
	}
	return nodes
}

func podOf(given rackPod, selector string) *corev1.Pod {
	notes := map[string]string{}
	if selector != "" {
		notes[extension.AnnotationPodNetworkTopologySelector] = selector
	}
	if given.Index != nil {
		notes[extension.AnnotationGangPodNetworkTopologyIndex] = fmt.Sprint(given.Index)
	}
	cpu := corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(given.CPU, resource.DecimalSI)}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: given.Name, UID: types.UID(given.Name), Annotations: notes},
		Spec: corev1.PodSpec{NodeName: given.Node,
			Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: cpu}}}},
	}
}

// watched remembers what the solver was asked.
type watched struct {
	NetworkTopologySolver
	state *TopologyState
}

func (w *watched) PlacePods(ctx context.Context, states map[string]fwktype.CycleState, pods []*corev1.Pod, nodes []fwktype.NodeInfo,
	add podFunc, asked *JobTopologyRequirements, network *networktopology.TreeNode, scores map[string]int) (map[string]string, *fwktype.Status) {
	w.state = TopologyStateFromContext(ctx)
	return w.NetworkTopologySolver.PlacePods(ctx, states, pods, nodes, add, asked, network, scores)
}

func placed(asked topologyQuestion) (any, error) {
	if asked.NodeSlots != nil { // a node with as many cores, and members of one core each
		for i := range asked.Nodes {
			asked.Nodes[i].CPU = asked.NodeSlots[asked.Nodes[i].Name]
		}
		for i := range asked.Pods {
			asked.Pods[i].CPU = 1
		}
		for i := range asked.Existing {
			asked.Existing[i].CPU = 0
		}
	}
	network, err := networkOf(asked.Layers, asked.Nodes)
	if err != nil {
		return nil, err
	}
	var existing []*corev1.Pod
	for i, each := range asked.Existing {
		each.Name = fmt.Sprintf("existing-%d", i)
		existing = append(existing, podOf(each, each.Selector))
	}
	handle := newRack(nodesOf(asked.Nodes), existing)
	solver := &watched{NetworkTopologySolver: NewNetworkTopologySolver(handle)}
	manager := &PodGroupManager{handle: handle, cache: NewGangCache(nil, nil, nil, nil, handle), networkTopologySolver: solver}
	gang := manager.cache.getGangFromCacheByGangId("default/gang", true)
	var first *corev1.Pod
	for _, each := range asked.Pods {
		first = podOf(each, asked.Selector)
		gang.setChild(first)
	}
	if first == nil {
		return nil, fmt.Errorf("no members")
	}
	round := &GangSchedulingContext{firstPod: first, gangGroup: sets.New("default/gang"), gangGroupID: "default/gang",
		networkTopologySpec: &extension.NetworkTopologySpec{GatherStrategy: asked.Rules}, networkTopologySnapshot: network.snapshot}
	manager.holder.setGangSchedulingContext(round, "")
	state := framework.NewCycleState()
	frameworkext.InitDiagnosis(state, first)
	_, status := manager.FindOneNode(context.Background(), state, first, nil)
	diagnosis := frameworkext.GetDiagnosis(state)
	answer := map[string]any{"scheduled": status.IsSuccess(), "nodeSlots": diagnosis.ScheduleDiagnosis.NodeOfferSlot,
		"mustGatherLayer": diagnosis.TopologyKeyToExplain}
	if !status.IsSuccess() {
		answer["message"] = status.Message()
		return answer, nil
	}
	plan := map[string]string{}
	for key, node := range round.networkTopologyPlannedNodes {
		plan[key[len("default/"):]] = node
	}
	answer["plan"] = plan
	answer["candidate"] = chosen(solver.state, plan)
	return answer, nil
}

// chosen is the one place of those that hold the gang that has a planned node below it.
func chosen(state *TopologyState, plan map[string]string) map[string]string {
	for _, place := range searchOfferSlotSatisfiedNodes(state.JobTopologyRequirements, state.MustGatheredTopologyNode) {
		below := enumerateNodeTopologyNode(place, 0)
		for _, node := range plan {
			if below[node] != nil {
				return map[string]string{"layer": string(place.Layer), "name": place.Name}
			}
		}
	}
	return nil
}

func scored(asked topologyQuestion) (any, error) {
	network, err := networkOf(asked.Layers, asked.Nodes)
	if err != nil {
		return nil, err
	}
	var existing []*corev1.Pod
	for i, each := range asked.Existing {
		each.Name = fmt.Sprintf("existing-%d", i)
		existing = append(existing, podOf(each, each.Selector))
	}
	handle := newRack(nodesOf(asked.Nodes), existing)
	handle.trees = network
	manager := &PodGroupManager{handle: handle}
	var nodes []fwktype.NodeInfo
	for _, name := range asked.Candidates {
		node, err := handle.snapshot.NodeInfos().Get(name)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, node)
	}
	ctx, state, pod := context.Background(), framework.NewCycleState(), podOf(rackPod{Name: "p"}, asked.Selector)
	if status := manager.PreScore(ctx, state, pod, nodes); status.IsSkip() {
		return nil, fmt.Errorf("nothing to prefer")
	}
	var scores fwktype.NodeScoreList
	order, final := make([]string, len(nodes)), map[string]int64{}
	for _, node := range nodes {
		place, _ := manager.Score(ctx, state, pod, node)
		order[place] = node.Node().Name
		scores = append(scores, fwktype.NodeScore{Name: node.Node().Name, Score: place})
	}
	helper.DefaultNormalizeScore(fwktype.MaxNodeScore, true, scores)
	for _, each := range scores {
		final[each.Name] = each.Score
	}
	return map[string]any{"order": order, "score": final}, nil
}
