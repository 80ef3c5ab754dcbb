// in pkg/scheduler/plugins/deviceshare
package deviceshare

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	fwktype "k8s.io/kube-scheduler/framework"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	apiext "github.com/koordinator-sh/koordinator/apis/extension"
	schedulingv1alpha1 "github.com/koordinator-sh/koordinator/apis/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	schedulerconfig "github.com/koordinator-sh/koordinator/pkg/scheduler/apis/config"
	v1 "github.com/koordinator-sh/koordinator/pkg/scheduler/apis/config/v1"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/frameworkext"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/frameworkext/hinter"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/frameworkext/schedulingphase"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/frameworkext/topologymanager"
	"github.com/koordinator-sh/koordinator/pkg/util/bitmask"
)

const theNode = "node"

type amountsByMinor map[schedulingv1alpha1.DeviceType]map[int32]corev1.ResourceList

type heldReservation struct {
	Name         string                                       `json:"name"`
	Policy       schedulingv1alpha1.ReservationAllocatePolicy `json:"policy"`
	Reserved     amountsByMinor                               `json:"reserved"`
	UsedByOwners amountsByMinor                               `json:"usedByOwners"`
	Matched      *bool                                        `json:"matched"`
}

type deviceQuestion struct {
	Op       string `json:"op"`
	Fixtures struct {
		Device map[string]json.RawMessage `json:"device"`
	} `json:"fixtures"`
	Device     json.RawMessage            `json:"device"`
	Used       []apiext.DeviceAllocations `json:"used"`
	NodeLabels map[string]string          `json:"nodeLabels"`
	Pod        struct {
		Requests    corev1.ResourceList `json:"requests"`
		Labels      map[string]string   `json:"labels"`
		Annotations map[string]string   `json:"annotations"`
	} `json:"pod"`
	DeviceHint bool  `json:"deviceHint"`
	NUMANodes  []int `json:"numaNodes"`
	Scoring    *struct {
		Strategy string           `json:"strategy"`
		Weights  map[string]int64 `json:"weights"`
	} `json:"scoring"`
	Phase        string                                       `json:"phase"`
	Preemptible  amountsByMinor                               `json:"preemptible"`
	Templates    map[string]apiext.GPUSharedResourceTemplates `json:"templates"`
	Reservations []heldReservation                            `json:"reservations"`
	Reservation  *heldReservation                             `json:"reservation"`
	MustReserve  bool                                         `json:"requiredFromReservation"`
	Unsupported  map[string][]string                          `json:"gpuShareUnsupportedModels"`
}

func init() {
	answering.Area("device-allocate", answering.Of(decided))
	answering.Area("joint-allocate", answering.Of(decided))
	answering.Area("gpu-partition", answering.Of(decided))
}

// nobody is a handle and a nominator of nothing.
type nobody struct {
	frameworkext.ExtendedHandle
	frameworkext.ReservationNominator
}

func (nobody) GetReservationNominator() frameworkext.ReservationNominator { return nobody{} }
func (nobody) GetNominatedReservation(*corev1.Pod, string) *frameworkext.ReservationInfo {
	return nil
}

// situation is the plugin with all that it has heard, and the cycle of the pod.
type situation struct {
	plugin   *Plugin
	cycle    fwktype.CycleState
	pod      *corev1.Pod
	info     *framework.NodeInfo
	state    *preFilterState
	restored *nodeReservationRestoreStateData
}

func (asked deviceQuestion) scorer() *resourceAllocationScorer {
	args := &v1.DeviceShareArgs{}
	v1.SetDefaults_DeviceShareArgs(args)
	found := &schedulerconfig.DeviceShareArgs{}
	_ = v1.Convert_v1_DeviceShareArgs_To_config_DeviceShareArgs(args, found, nil)
	if asked.Scoring != nil {
		found.ScoringStrategy.Type = schedulerconfig.ScoringStrategyType(asked.Scoring.Strategy)
		found.ScoringStrategy.Resources = nil
		for name, weight := range asked.Scoring.Weights {
			found.ScoringStrategy.Resources = append(found.ScoringStrategy.Resources,
				schedconfig.ResourceSpec{Name: name, Weight: weight})
		}
	}
	return deviceResourceStrategyTypeMap[found.ScoringStrategy.Type](found)
}

func (asked deviceQuestion) situation() (*situation, error) {
	plugin := &Plugin{
		handle: nobody{}, nodeDeviceCache: newNodeDeviceCache(), gpuShareUnsupportedModels: map[string]sets.Set[string]{},
		gpuSharedResourceTemplatesCache: newGPUSharedResourceTemplatesCache(),
	}
	for vendor, models := range asked.Unsupported {
		plugin.gpuShareUnsupportedModels[vendor] = sets.New(models...)
	}
	if asked.Templates != nil {
		plugin.gpuSharedResourceTemplatesCache.setTemplatesInfos(asked.Templates)
		plugin.gpuSharedResourceTemplatesMatchedResources = []corev1.ResourceName{apiext.ResourceHuaweiNPUCore}
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: theNode, Labels: asked.NodeLabels}}
	info := framework.NewNodeInfo()
	info.SetNode(node)
	pod := podOf(asked.Pod.Requests)
	pod.Name, pod.Labels, pod.Annotations = "new", asked.Pod.Labels, asked.Pod.Annotations
	s := &situation{plugin: plugin, cycle: framework.NewCycleState(), pod: pod, info: info}
	if asked.DeviceHint {
		hinter.SetSchedulingHintState(s.cycle, &hinter.SchedulingHintStateData{Extensions: map[string]any{Name: true}})
	}
	if asked.Op == "gate" {
		return s, nil
	}
	return s, asked.hold(s)
}

// hold puts devices, pods and reservations onto the node.
func (asked deviceQuestion) hold(s *situation) error {
	raw := asked.Device
	var name string
	if json.Unmarshal(raw, &name) == nil {
		raw = asked.Fixtures.Device[name]
	}
	device := &schedulingv1alpha1.Device{}
	if err := json.Unmarshal(raw, device); err != nil {
		return err
	}
	s.plugin.nodeDeviceCache.updateNodeDevice(theNode, device)
	held := s.plugin.nodeDeviceCache.getNodeDevice(theNode, true)
	for number, allocations := range asked.Used {
		held.updateCacheUsed(allocations, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("pod-", number)}}, true)
	}
	if asked.Reservation != nil {
		asked.Reservations = append(asked.Reservations, *asked.Reservation)
	}
	var matched, unmatched []*frameworkext.ReservationInfo
	for number, each := range asked.Reservations {
		reservation := &schedulingv1alpha1.Reservation{Spec: schedulingv1alpha1.ReservationSpec{AllocatePolicy: each.Policy}}
		reservation.Name, reservation.UID = each.Name, types.UID(fmt.Sprint("uid-", number))
		found := frameworkext.NewReservationInfo(reservation)
		held.updateCacheUsed(each.Reserved.allocations(), found.GetReservePod(), true)
		owner := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("owner-", number)}}
		held.updateCacheUsed(each.UsedByOwners.allocations(), owner, true)
		found.AssignedPods["owner"] = &frameworkext.PodRequirement{Name: owner.Name}
		if each.Matched == nil || *each.Matched || apiext.IsReservationIgnored(s.pod) {
			matched = append(matched, found)
		} else {
			unmatched = append(unmatched, found)
		}
	}
	if status := s.plugin.PreRestoreReservation(context.TODO(), s.cycle, s.pod); !status.IsSuccess() {
		return nil // PreFilter refuses it, too
	}
	restored, _ := s.plugin.RestoreReservation(context.TODO(), s.cycle, s.pod, matched, unmatched, s.info)
	if s.restored, _ = restored.(*nodeReservationRestoreStateData); s.restored == nil {
		s.restored = &nodeReservationRestoreStateData{}
	}
	return nil
}

func (a amountsByMinor) allocations() apiext.DeviceAllocations {
	allocations := apiext.DeviceAllocations{}
	for deviceType, byMinor := range a {
		for minor, amounts := range byMinor {
			allocations[deviceType] = append(allocations[deviceType], &apiext.DeviceAllocation{Minor: minor, Resources: amounts})
		}
	}
	return allocations
}

func (a amountsByMinor) resources() map[schedulingv1alpha1.DeviceType]deviceResources {
	found := map[schedulingv1alpha1.DeviceType]deviceResources{}
	for deviceType, byMinor := range a {
		found[deviceType] = deviceResources{}
		for minor, amounts := range byMinor {
			found[deviceType][int(minor)] = amounts
		}
	}
	return found
}

// prepare runs PreFilter.
func (asked deviceQuestion) prepare(s *situation) *fwktype.Status {
	topologymanager.InitStore(s.cycle)
	if _, status := s.plugin.PreFilter(context.TODO(), s.cycle, s.pod, nil); !status.IsSuccess() {
		return status
	}
	s.state, _ = getPreFilterState(s.cycle)
	s.state.preemptibleDevices[theNode] = asked.Preemptible.resources()
	s.state.isReservationRequired = asked.MustReserve
	if asked.NUMANodes != nil {
		mask, _ := bitmask.NewBitMask(asked.NUMANodes...)
		topologymanager.GetStore(s.cycle).SetAffinity(theNode, topologymanager.NUMATopologyHint{NUMANodeAffinity: mask})
	}
	if asked.Phase != "" {
		schedulingphase.RecordPhase(s.cycle, asked.Phase)
	}
	return nil
}

// decided asks many times: what depends on the order of a map is no answer, or any of several reasons.
func decided(asked deviceQuestion) (any, error) { return sameEachTime(asked.decide) }

func (asked deviceQuestion) decide() (any, error) {
	s, err := asked.situation()
	if err != nil {
		return nil, err
	}
	if status := asked.prepare(s); status.Code() == fwktype.Skip {
		return map[string]any{"ok": true, "allocations": map[string]any{}}, nil
	} else if !status.IsSuccess() {
		return refused(status), nil
	}
	switch asked.Op {
	case "gate":
		if status := s.plugin.Filter(context.TODO(), s.cycle, s.pod, s.info); !status.IsSuccess() {
			return refused(status), nil
		}
		return map[string]any{"ok": true}, nil
	case "numaHints":
		return s.hints()
	case "allocate":
		if asked.Scoring != nil {
			s.plugin.scorer = asked.scorer()
		}
		found, from, status := asked.allocate(s)
		if !status.IsSuccess() {
			return refused(status), nil
		}
		answer := map[string]any{"ok": true, "allocations": flat(found)}
		if len(asked.Reservations) > 0 {
			answer["from"] = from
		}
		return answer, nil
	}
	return nil, fmt.Errorf("no op %q", asked.Op)
}

func refused(status *fwktype.Status) map[string]any {
	var reasons []string
	for _, each := range status.Reasons() {
		if names, some := strings.CutPrefix(each, "invalid resource device requests: ["); some {
			sorted := strings.Fields(strings.TrimSuffix(names, "]"))
			sort.Strings(sorted)
			each = fmt.Sprintf("invalid resource device requests: %v", sorted)
		}
		if !slices.Contains(reasons, each) {
			reasons = append(reasons, each)
		}
	}
	reason := strings.Join(reasons, ", ")
	return map[string]any{"ok": false, "code": status.Code().String(), "reason": reason, "reasonAnyOf": []string{reason}}
}

// allocate tries the reservations that the pod may use one after the other, then the node, and says who served it.
func (asked deviceQuestion) allocate(s *situation) (apiext.DeviceAllocations, string, *fwktype.Status) {
	device := s.plugin.nodeDeviceCache.getNodeDevice(theNode, false)
	if len(asked.Reservations) == 0 {
		status := s.plugin.allocate(context.TODO(), s.cycle, s.pod, s.info.Node())
		return s.state.allocationResult, "node", status
	}
	affinity, _ := topologymanager.GetStore(s.cycle).GetAffinity(theNode)
	allocator := &AutopilotAllocator{
		state: s.state, nodeDevice: device, node: s.info.Node(), pod: s.pod, scorer: s.plugin.scorer,
		phaseBeingExecuted: schedulingphase.GetExtensionPointBeingExecuted(s.cycle), numaNodes: affinity.NUMANodeAffinity,
	}
	preemptible := appendAllocated(nil, s.restored.mergedUnmatchedUsed, s.state.preemptibleDevices[theNode])
	from := "node"
	if apiext.IsReservationIgnored(s.pod) {
		from = "ignored"
	}
	for index, one := range s.restored.matched {
		found, status := s.plugin.tryAllocateFromReusable(allocator, s.state, s.restored, s.restored.matched[index:index+1],
			s.pod, s.info.Node(), preemptible, false)
		if from == "ignored" && !status.IsSuccess() {
			return nil, "", status
		}
		if len(found) > 0 {
			if from == "node" {
				from = one.rInfo.GetName()
			}
			return found, from, asStatus(fillGPUTotalMem(found, device))
		}
	}
	_, status := s.plugin.tryAllocateFromReusable(
		allocator, s.state, s.restored, s.restored.matched, s.pod, s.info.Node(), preemptible, asked.MustReserve)
	if !status.IsSuccess() {
		return nil, "", status
	}
	preemptible = appendAllocated(preemptible, s.restored.mergedMatchedAllocatable)
	found, status := allocator.Allocate(nil, nil, nil, preemptible)
	if !status.IsSuccess() {
		return nil, "", status
	}
	return found, from, asStatus(fillGPUTotalMem(found, device))
}

func asStatus(err error) *fwktype.Status {
	if err == nil {
		return nil
	}
	return fwktype.NewStatus(fwktype.Error, fmt.Sprintf("fillGPUTotalMem failed: %v, node: %v", err, theNode))
}

func flat(found apiext.DeviceAllocations) map[string]any {
	allocations := map[string]any{}
	for deviceType, ofType := range found {
		sort.SliceStable(ofType, func(i, j int) bool { return ofType[i].Minor < ofType[j].Minor })
		list := []any{}
		for _, each := range ofType {
			one := map[string]any{"minor": each.Minor, "resources": textsOf(each.Resources)}
			if extension := flatExtension(each.Extension); len(extension) > 0 {
				one["extension"] = extension
			}
			list = append(list, one)
		}
		allocations[string(deviceType)] = list
	}
	return allocations
}

func flatExtension(found *apiext.DeviceAllocationExtension) map[string]any {
	extension := map[string]any{}
	if found != nil && len(found.VirtualFunctions) > 0 {
		vfs := []any{}
		for _, vf := range found.VirtualFunctions {
			vfs = append(vfs, map[string]any{"busID": vf.BusID, "minor": vf.Minor})
		}
		extension["vfs"] = vfs
	}
	if found != nil && found.GPUSharedResourceTemplate != "" {
		extension["gpuSharedResourceTemplate"] = found.GPUSharedResourceTemplate
	}
	return extension
}

func (s *situation) hints() (any, error) {
	found, status := s.plugin.GetPodTopologyHints(context.TODO(), s.cycle, s.pod, s.info.Node())
	if !status.IsSuccess() {
		return refused(status), nil
	}
	hints := map[string]any{}
	for deviceType, ofType := range found {
		list := []any{}
		for _, each := range ofType {
			list = append(list, map[string]any{
				"numaNodes": each.NUMANodeAffinity.GetBits(), "preferred": each.Preferred, "score": each.Score})
		}
		hints[deviceType] = list
	}
	return map[string]any{"ok": true, "hints": hints}, nil
}

const (
	tries       = 16
	refusedMore = 64 // maps of two are seldom walked through in the other order
)

// sameEachTime asks again and again. Answers may differ in their one reason: all of them are told.
func sameEachTime(ask func() (any, error)) (any, error) {
	first, err := ask()
	if err != nil {
		return nil, err
	}
	var reasons []string
	count := tries
	if answer, some := first.(map[string]any); some && answer["reasonAnyOf"] != nil {
		count += refusedMore
	}
	for number := 0; number < count; number++ {
		again, err := ask()
		if err != nil {
			return nil, err
		}
		if answer, some := again.(map[string]any); some && answer["reasonAnyOf"] != nil {
			for _, reason := range answer["reasonAnyOf"].([]string) {
				if !slices.Contains(reasons, reason) {
					reasons = append(reasons, reason)
				}
			}
			for _, member := range []string{"reason", "reasonAnyOf"} {
				answer[member] = first.(map[string]any)[member]
			}
		}
		if !reflect.DeepEqual(again, first) {
			return nil, errors.New("the answer depends on the order of a map")
		}
	}
	if reasons != nil {
		sort.Strings(reasons)
		first.(map[string]any)["reasonAnyOf"] = reasons
	}
	return first, nil
}
