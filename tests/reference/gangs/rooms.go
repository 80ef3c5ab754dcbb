// in pkg/scheduler/plugins/reservation
package reservation

import (
	"context"
	"fmt"
	"math"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwktype "k8s.io/kube-scheduler/framework"
	schedulercache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/parallelize"

	apiext "github.com/koordinator-sh/koordinator/apis/extension"
	schedulingv1alpha1 "github.com/koordinator-sh/koordinator/apis/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	schedulinglister "github.com/koordinator-sh/koordinator/pkg/client/listers/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/apis/config"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/frameworkext"
	reservationutil "github.com/koordinator-sh/koordinator/pkg/util/reservation"
)

type roomOfPods struct {
	Name          string                `json:"name"`
	Order         string                `json:"order"`
	Policy        string                `json:"policy"`
	Allocatable   corev1.ResourceList   `json:"allocatable"`
	Allocated     corev1.ResourceList   `json:"allocated"`
	Reserved      corev1.ResourceList   `json:"reserved"`
	ResourceNames []corev1.ResourceName `json:"resourceNames"`
	Once          *bool                 `json:"allocateOnce"`
	Assigned      int                   `json:"assignedPods"`
	Matched       bool                  `json:"matched"`
	Owners        []corev1.ResourceList `json:"owners"`
}

func (r roomOfPods) info() *frameworkext.ReservationInfo {
	object := &schedulingv1alpha1.Reservation{ObjectMeta: metav1.ObjectMeta{Name: r.Name, UID: types.UID(r.Name), Labels: map[string]string{}}}
	object.Spec.AllocateOnce = r.Once
	object.Spec.Template = &corev1.PodTemplateSpec{}
	object.Spec.AllocatePolicy = schedulingv1alpha1.ReservationAllocatePolicy(r.Policy)
	object.Status = schedulingv1alpha1.ReservationStatus{Phase: schedulingv1alpha1.ReservationAvailable, NodeName: nodeName, Allocatable: r.Allocatable}
	if r.Order != "" {
		object.Labels[apiext.LabelReservationOrder] = r.Order
	}
	info := frameworkext.NewReservationInfo(object)
	info.Allocatable, info.Allocated, info.Reserved, info.ResourceNames = r.Allocatable, r.Allocated, r.Reserved, r.ResourceNames
	hold(info, r.Assigned)
	return info
}

func podOf(requests corev1.ResourceList) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "p"}}
	pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: requests}}}
	return pod
}

// counter stands for the scheduler around the plugin: one node.
type counter struct {
	frameworkext.FrameworkExtender
	frameworkext.ReservationNominator
	plugin   *Plugin
	node     fwktype.NodeInfo
	nominees map[string]*frameworkext.ReservationInfo
}

func newCounter(allocatable corev1.ResourceList, pods int) (*Plugin, *counter) {
	if len(allocatable) == 0 {
		much := *resource.NewQuantity(math.MaxInt32, resource.DecimalSI)
		allocatable = corev1.ResourceList{"cpu": much, "memory": *resource.NewQuantity(math.MaxInt64/4, resource.DecimalSI), "ephemeral-storage": much, "pods": much}
	}
	at := &counter{nominees: map[string]*frameworkext.ReservationInfo{}}
	at.node = framework.NewNodeInfo()
	at.node.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}, Status: corev1.NodeStatus{Allocatable: allocatable}})
	for i := 0; i < pods; i++ {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i))}}
		info, _ := framework.NewPodInfo(pod)
		at.node.AddPodInfo(info)
	}
	at.plugin = &Plugin{handle: at, reservationCache: newReservationCache(nil), nominator: newNominator(nil, nil), args: &config.ReservationArgs{}}
	return at.plugin, at
}

func (c *counter) state(requests corev1.ResourceList) *stateData {
	state := &stateData{}
	state.podRequests, state.podRequestsResources = requests, framework.NewResource(requests)
	state.podResourceNames = quotav1.ResourceNames(requests)
	state.preemptible, state.preemptibleInRRs = map[string]corev1.ResourceList{}, map[string]map[types.UID]corev1.ResourceList{}
	state.nodeReservationStates = map[string]*nodeReservationState{}
	return state
}

func (c *counter) Name() string                                               { return "" }
func (c *counter) Parallelizer() fwktype.Parallelizer                         { return parallelize.NewParallelizer(1) }
func (c *counter) GetReservationNominator() frameworkext.ReservationNominator { return c }
func (c *counter) SnapshotSharedLister() fwktype.SharedLister {
	return schedulercache.NewSnapshot(nil, []*corev1.Node{c.node.Node()})
}
func (c *counter) NominateReservation(_ context.Context, _ fwktype.CycleState, _ *corev1.Pod, node string) (*frameworkext.ReservationInfo, *fwktype.Status) {
	return c.nominees[node], nil
}
func (c *counter) AddNominatedReservation(*corev1.Pod, string, *frameworkext.ReservationInfo) {}
func (c *counter) GetNominatedReservation(_ *corev1.Pod, node string) *frameworkext.ReservationInfo {
	return c.nominees[node]
}
func (c *counter) RunReservationFilterPlugins(context.Context, fwktype.CycleState, *corev1.Pod, *frameworkext.ReservationInfo, fwktype.NodeInfo) *fwktype.Status {
	return nil
}

// RunNominateReservationFilterPlugins asks the plugin; resources are no matter, and pods of none of them fit anywhere.
func (c *counter) RunNominateReservationFilterPlugins(ctx context.Context, cycle fwktype.CycleState, pod *corev1.Pod, info *frameworkext.ReservationInfo, node string) *fwktype.Status {
	if !info.IsAllocateOnce() || info.GetAllocatedPods() == 0 {
		return nil
	}
	return c.plugin.FilterNominateReservation(ctx, cycle, pod, info, node)
}
func (c *counter) RunReservationScorePlugins(ctx context.Context, cycle fwktype.CycleState, pod *corev1.Pod, infos []*frameworkext.ReservationInfo, node string) (frameworkext.PluginToReservationScores, *fwktype.Status) {
	var scores frameworkext.ReservationScoreList
	for _, info := range infos {
		score, status := c.plugin.ScoreReservation(ctx, cycle, pod, info, node)
		if !status.IsSuccess() {
			return nil, status
		}
		scores = append(scores, frameworkext.ReservationScore{Name: info.GetName(), UID: info.UID(), Score: score})
	}
	return frameworkext.PluginToReservationScores{Name: scores}, nil
}
func (c *counter) RunReservationExtensionRestoreReservation(context.Context, fwktype.CycleState, *corev1.Pod, []*frameworkext.ReservationInfo, []*frameworkext.ReservationInfo, fwktype.NodeInfo) (frameworkext.PluginToReservationRestoreStates, *fwktype.Status) {
	return nil, nil
}
func (c *counter) Scheduler() frameworkext.Scheduler { return fresh{} }

type fresh struct {
	frameworkext.Scheduler
	frameworkext.SchedulerCache
}

func (f fresh) GetCache() frameworkext.SchedulerCache     { return f }
func (f fresh) InvalidNodeInfo(klog.Logger, string) error { return nil }

type policyQuestion struct {
	Op          string                         `json:"op"`
	Requests    corev1.ResourceList            `json:"podRequests"`
	Allocatable corev1.ResourceList            `json:"nodeAllocatable"`
	PodsOnNode  int                            `json:"podsOnNode"`
	Requested   corev1.ResourceList            `json:"nodeRequested"`
	Matched     corev1.ResourceList            `json:"matchedAllocated"`
	Rooms       []roomOfPods                   `json:"reservations"`
	Must        bool                           `json:"requiredFromReservation"`
	Name        string                         `json:"reservationName"`
	Freed       corev1.ResourceList            `json:"preemptibleOnNode"`
	FreedInside map[string]corev1.ResourceList `json:"preemptibleInReservations"`
	SkipsNode   bool                           `json:"skipFitsNode"`
	Ignores     bool                           `json:"reservationIgnored"`
	Ignored     []string                       `json:"ignoredResources"`
	Groups      []string                       `json:"ignoredResourceGroups"`
	Asked       corev1.ResourceList            `json:"reservationRequests"`
	Room        roomOfPods                     `json:"reservation"`
	FreedInRoom corev1.ResourceList            `json:"preemptibleInReservation"`
	Candidates  []struct {
		Name     string              `json:"name"`
		Requests corev1.ResourceList `json:"requests"`
	} `json:"candidates"`
	Multiple    bool                  `json:"multiple"`
	Required    bool                  `json:"required"`
	PrefersNone bool                  `json:"preferNoPreAllocated"`
	Scores      map[string]*int64     `json:"scores"`
	Orders      map[string]int64      `json:"orders"`
	PlainPods   []corev1.ResourceList `json:"plainPods"`
	Incoming    string                `json:"incoming"`
	Existing    []string              `json:"existing"`
	roomOfAvailable
}

// roomOfAvailable are the members of the operation "available".
type roomOfAvailable struct {
	All  corev1.ResourceList `json:"allocatable"`
	Used corev1.ResourceList `json:"allocated"`
	Kept corev1.ResourceList `json:"reserved"`
}

func init() { answering.Area("reservation-allocate-policy", answering.Of(policyOfAny)) }

// policyOfAny refuses where the answer depends on the order of a map.
func policyOfAny(asked policyQuestion) (any, error) {
	first, err := policyOf(asked)
	for i := 0; i < 5 && err == nil; i++ {
		again, failed := policyOf(asked)
		if failed != nil || !reflect.DeepEqual(again, first) {
			return nil, fmt.Errorf("depends on the order of resources")
		}
	}
	return first, err
}

func policyOf(asked policyQuestion) (any, error) {
	if len(asked.Ignored) > 0 || len(asked.Groups) > 0 {
		return nil, fmt.Errorf("this release ignores no resources")
	}
	switch asked.Op {
	case "filter":
		return filtered(asked)
	case "preAllocate":
		return preAllocated(asked)
	case "reservationScore":
		plugin, at := newCounter(nil, 0)
		state, cycle := at.state(asked.Requests), framework.NewCycleState()
		info := asked.Room.info()
		state.preemptibleInRRs[nodeName] = map[types.UID]corev1.ResourceList{info.UID(): asked.FreedInRoom}
		cycle.Write(stateKey, state)
		score, status := plugin.ScoreReservation(context.Background(), cycle, podOf(asked.Requests), info, nodeName)
		return map[string]any{"score": score}, status.AsError()
	case "nodeScores":
		return scoredNodes(asked)
	case "restore":
		return restored(asked)
	case "policyConflict":
		return conflicting(asked)
	case "available":
		room := roomOfPods{Allocatable: asked.All, Allocated: asked.Used, Reserved: asked.Kept}
		return map[string]any{"available": listOf(room.info().GetAvailable())}, nil
	}
	return nil, fmt.Errorf("no question %s", asked.Op)
}

func listOf(from *framework.Resource) corev1.ResourceList {
	found := corev1.ResourceList{"cpu": *resource.NewMilliQuantity(from.MilliCPU, resource.DecimalSI),
		"memory": *resource.NewQuantity(from.Memory, resource.DecimalSI)}
	if from.EphemeralStorage != 0 {
		found["ephemeral-storage"] = *resource.NewQuantity(from.EphemeralStorage, resource.DecimalSI)
	}
	for name, amount := range from.ScalarResources {
		found[name] = *resource.NewQuantity(amount, resource.DecimalSI)
	}
	return found
}

func verdict(status *fwktype.Status) map[string]any {
	if status.IsSuccess() {
		return map[string]any{"ok": true}
	}
	return map[string]any{"ok": false, "reasons": status.Reasons()}
}

func filtered(asked policyQuestion) (any, error) {
	plugin, at := newCounter(asked.Allocatable, asked.PodsOnNode)
	plugin.enableSkipReservationFitsNode = asked.SkipsNode
	pod, state, cycle := podOf(asked.Requests), at.state(asked.Requests), framework.NewCycleState()
	if asked.Ignores {
		pod.Labels = map[string]string{apiext.LabelReservationIgnored: "true"}
	}
	state.hasAffinity, state.reservationName = asked.Must, asked.Name
	seen := &nodeReservationState{nodeName: nodeName, podRequested: framework.NewResource(asked.Requested), rAllocated: framework.NewResource(asked.Matched)}
	state.nodeReservationStates[nodeName] = seen
	if asked.Freed != nil {
		state.preemptible[nodeName] = asked.Freed
	}
	for _, each := range asked.Rooms {
		info := each.info()
		seen.matchedOrIgnored = append(seen.matchedOrIgnored, info)
		if freed, ok := asked.FreedInside[each.Name]; ok {
			if state.preemptibleInRRs[nodeName] == nil {
				state.preemptibleInRRs[nodeName] = map[types.UID]corev1.ResourceList{}
			}
			state.preemptibleInRRs[nodeName][info.UID()] = freed
		}
	}
	cycle.Write(stateKey, state)
	return verdict(plugin.filterWithReservations(context.Background(), cycle, pod, at.node, seen.matchedOrIgnored, asked.Must)), nil
}

func preAllocated(asked policyQuestion) (any, error) {
	plugin, at := newCounter(asked.Allocatable, asked.PodsOnNode)
	plugin.args.PreAllocationConfig = &config.PreAllocationConfig{PreferNoPreAllocatedPods: asked.PrefersNone}
	state, cycle := at.state(asked.Asked), framework.NewCycleState()
	info := asked.Room.info()
	// Candidates come in their order, as those of the cluster do.
	info.Reservation.Spec.PreAllocationPolicy = &schedulingv1alpha1.PreAllocationPolicy{
		EnableMultiple: asked.Multiple, Mode: schedulingv1alpha1.PreAllocationModeCluster}
	state.rInfo = info
	seen := &nodeReservationState{nodeName: nodeName, podRequested: framework.NewResource(asked.Requested)}
	for _, each := range asked.Candidates {
		pod := podOf(each.Requests)
		pod.Name, pod.UID = each.Name, types.UID(each.Name)
		seen.preAllocatablePods = append(seen.preAllocatablePods, pod)
	}
	state.nodeReservationStates[nodeName] = seen
	if asked.Freed != nil {
		state.preemptible[nodeName] = asked.Freed
	}
	cycle.Write(stateKey, state)
	pods, status := plugin.filterWithPreAllocatablePods(context.Background(), cycle, info, at.node, seen.preAllocatablePods, asked.Required)
	answer := verdict(status)
	if !status.IsSuccess() {
		return answer, nil
	}
	names := []string{}
	for _, pod := range pods {
		names = append(names, pod.Name)
	}
	answer["selected"] = names
	if seen.selectedPreAllocatablePods = pods; asked.Multiple {
		answer["score"], status = plugin.scoreForPreAllocation(context.Background(), cycle, podOf(asked.Asked), nodeName)
	}
	return answer, status.AsError()
}

// scoredNodes has a nominated reservation on each node with a score, of which so much is used.
func scoredNodes(asked policyQuestion) (any, error) {
	plugin, at := newCounter(nil, 0)
	state, cycle := at.state(nil), framework.NewCycleState()
	var nodes []fwktype.NodeInfo
	names := map[string]bool{}
	for name := range asked.Scores {
		names[name] = true
	}
	for name := range asked.Orders {
		names[name] = true
	}
	for name := range names {
		node := framework.NewNodeInfo()
		node.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		nodes = append(nodes, node)
		room := roomOfPods{Name: name, Allocatable: corev1.ResourceList{"cpu": resource.MustParse("100")}}
		if order := asked.Orders[name]; order != 0 {
			room.Order = fmt.Sprint(order)
		}
		score := asked.Scores[name]
		if score != nil {
			room.Allocated = corev1.ResourceList{"cpu": *resource.NewQuantity(*score, resource.DecimalSI)}
		}
		info := room.info()
		if score != nil {
			at.nominees[name] = info
		}
		state.nodeReservationStates[name] = &nodeReservationState{nodeName: name, matchedOrIgnored: []*frameworkext.ReservationInfo{info}}
	}
	cycle.Write(stateKey, state)
	ctx, pod := context.Background(), podOf(nil)
	plugin.PreScore(ctx, cycle, pod, nodes)
	var scores fwktype.NodeScoreList
	raw, final := map[string]int64{}, map[string]int64{}
	for _, node := range nodes {
		name := node.Node().Name
		score, status := plugin.Score(ctx, cycle, pod, node)
		if !status.IsSuccess() {
			return nil, status.AsError()
		}
		raw[name] = score
		scores = append(scores, fwktype.NodeScore{Name: name, Score: score})
	}
	plugin.NormalizeScore(ctx, cycle, pod, scores)
	for _, each := range scores {
		final[each.Name] = each.Score
	}
	answer := map[string]any{"raw": raw, "normalised": final, "preferredNode": nil}
	if state.preferredNode != "" {
		answer["preferredNode"] = state.preferredNode
	}
	return answer, nil
}

func restored(asked policyQuestion) (any, error) {
	_, at := newCounter(nil, 0)
	put := func(name string, pod *corev1.Pod) {
		pod.Name, pod.UID = name, types.UID(name)
		info, _ := framework.NewPodInfo(pod)
		at.node.AddPodInfo(info)
	}
	seen := &nodeReservationState{nodeName: nodeName}
	for i, requests := range asked.PlainPods {
		put(fmt.Sprint("plain-", i), podOf(requests))
	}
	for _, each := range asked.Rooms {
		each.Once = new(bool)
		info := each.info()
		for name := range each.Allocatable {
			info.ResourceNames = append(info.ResourceNames, name)
		}
		put(each.Name, info.GetReservePod())
		for i, requests := range each.Owners {
			pod := podOf(requests)
			put(fmt.Sprint(each.Name, "-", i), pod)
			info.AddAssignedPod(pod)
		}
		if each.Matched {
			seen.matchedOrIgnored = append(seen.matchedOrIgnored, info)
		} else if info.GetAllocatedPods() > 0 {
			seen.unmatched = append(seen.unmatched, info)
		}
	}
	now := func() corev1.ResourceList { return listOf(at.node.(*framework.NodeInfo).Requested) }
	answer := map[string]any{"initial": now()}
	_, status := restoreReservationResourcesForNode(context.Background(), framework.NewCycleState(), at, podOf(nil), nil, at.node, seen, false)
	answer["podRequested"] = listOf(seen.podRequested.(*framework.Resource))
	answer["final"], answer["matchedAllocated"] = now(), listOf(seen.rAllocated.(*framework.Resource))
	return answer, status.AsError()
}

func conflicting(asked policyQuestion) (any, error) {
	plugin, at := newCounter(nil, 0)
	for i, policy := range asked.Existing {
		once := false
		info := roomOfPods{Name: fmt.Sprint(i), Policy: policy, Once: &once}.info()
		plugin.reservationCache.updateReservation(info.Reservation)
	}
	incoming := roomOfPods{Name: "incoming", Policy: asked.Incoming}.info().Reservation
	incoming.Status = schedulingv1alpha1.ReservationStatus{}
	known := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	_ = known.Add(incoming)
	plugin.rLister = schedulinglister.NewReservationLister(known)
	cycle := framework.NewCycleState()
	cycle.Write(stateKey, at.state(nil))
	status := plugin.Filter(context.Background(), cycle, reservationutil.NewReservePod(incoming), at.node)
	return map[string]any{"conflict": !status.IsSuccess()}, nil
}
