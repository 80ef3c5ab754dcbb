// in pkg/koordlet/statesinformer/impl
package impl

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/k8stopologyawareschedwg/noderesourcetopology-api/pkg/apis/topology/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/koordinator-sh/koordinator/apis/extension"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/features"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/metriccache"
	koordletutil "github.com/koordinator-sh/koordinator/pkg/koordlet/util"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/util/kubelet"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/util/system"
	"github.com/koordinator-sh/koordinator/pkg/util"
	"github.com/koordinator-sh/koordinator/pkg/util/cpuset"
)

type knownZone struct {
	Name      string                       `json:"name"`
	Type      *string                      `json:"type"`
	Resources map[string]resource.Quantity `json:"resources"`
}

type knownTopology struct {
	Annotations map[string]string `json:"annotations"`
	Labels      map[string]string `json:"labels"`
	Policies    []string          `json:"policies"`
	Policy      string            `json:"policy"`
	Zones       []knownZone       `json:"zones"`
}

type topologyQuestion struct {
	Op               string                       `json:"op"`
	State            *string                      `json:"state"`
	Pods             []*corev1.Pod                `json:"pods"`
	Topology         [][4]int32                   `json:"topology"`
	KubeletTakenCPUs string                       `json:"kubeletTakenCPUs"`
	ReservedCPUs     string                       `json:"reservedCPUs"`
	SystemQOS        *extension.SystemQOSResource `json:"systemQOS"`
	Annotations      map[string]string            `json:"annotations"`
	Policy           string                       `json:"policy"`
	Scope            string                       `json:"scope"`
	Capacity         corev1.ResourceList          `json:"capacity"`
	Allocatable      corev1.ResourceList          `json:"allocatable"`
	Zones            []corev1.ResourceList        `json:"zones"`
	Reserved         corev1.ResourceList          `json:"reserved"`
	NUMANodes        []map[string]json.RawMessage `json:"numaNodes"`
	HugePageReport   bool                         `json:"hugePageReport"`
	Old              json.RawMessage              `json:"old"`
	New              json.RawMessage              `json:"new"`
}

func init() { answering.Area("topology-report", answering.Of(topologyReport)) }

func topologyReport(asked topologyQuestion) (any, error) {
	switch asked.Op {
	case "cpu-manager-state":
		return asked.managerState()
	case "share-pools":
		return asked.sharePools()
	case "node-reservation":
		return getNodeReserved(kubelet.NewCPUTopology(asked.machine()), asked.Annotations), nil
	case "topology-policy":
		return map[string]any{"policy": getTopologyPolicy(asked.Policy, asked.Scope)}, nil
	case "kubelet-reserve":
		informer := &nodeTopoInformer{nodeInformer: NewNodeInformer()}
		informer.nodeInformer.node = &corev1.Node{Status: corev1.NodeStatus{Capacity: asked.Capacity, Allocatable: asked.Allocatable}}
		return map[string]any{"milli": millisOf(informer.getNodeKubeletReservedResources())}, nil
	case "numa-reserve":
		zones := map[string]util.ZoneResources{}
		for i, zone := range asked.Zones {
			zones[fmt.Sprint(i)] = util.ZoneResources{Capacity: zone, Allocatable: zone}
		}
		left := []any{}
		zones = applyNUMAReservationToZoneResources(zones, asked.Reserved, len(asked.Zones))
		for i := range asked.Zones {
			left = append(left, millisOf(zones[fmt.Sprint(i)].Allocatable))
		}
		return map[string]any{"allocatableMilli": left}, nil
	case "zones":
		return asked.zones()
	case "merge-zones":
		var old, newer []knownZone
		if err := errors.Join(json.Unmarshal(asked.Old, &old), json.Unmarshal(asked.New, &newer)); err != nil {
			return nil, err
		}
		merged := []any{}
		for _, zone := range mergeNRTZoneFn(&v1alpha1.NodeResourceTopology{Zones: zonesOf(old)}, zonesOf(newer)) {
			amounts := map[string]string{}
			for _, each := range zone.Resources {
				amounts[each.Name] = each.Allocatable.String()
			}
			merged = append(merged, map[string]any{"name": zone.Name, "resources": amounts})
		}
		return map[string]any{"zones": merged}, nil
	}
	return asked.changed()
}

func millisOf(amounts corev1.ResourceList) map[corev1.ResourceName]int64 {
	found := map[corev1.ResourceName]int64{}
	for name, amount := range amounts {
		found[name] = amount.MilliValue()
	}
	return found
}

func (asked topologyQuestion) machine() *koordletutil.LocalCPUInfo {
	info := &koordletutil.LocalCPUInfo{TotalInfo: koordletutil.CPUTotalInfo{
		NumberCPUs: int32(len(asked.Topology)), CoreToCPU: map[int32][]koordletutil.ProcessorInfo{},
		NodeToCPU: map[int32][]koordletutil.ProcessorInfo{}, SocketToCPU: map[int32][]koordletutil.ProcessorInfo{},
	}}
	for _, row := range asked.Topology {
		one := koordletutil.ProcessorInfo{CPUID: row[0], CoreID: row[1], SocketID: row[2], NodeID: row[3]}
		info.ProcessorInfos = append(info.ProcessorInfos, one)
		info.TotalInfo.CoreToCPU[one.CoreID] = append(info.TotalInfo.CoreToCPU[one.CoreID], one)
		info.TotalInfo.NodeToCPU[one.NodeID] = append(info.TotalInfo.NodeToCPU[one.NodeID], one)
		info.TotalInfo.SocketToCPU[one.SocketID] = append(info.TotalInfo.SocketToCPU[one.SocketID], one)
	}
	return info
}

func (asked topologyQuestion) managerState() (any, error) {
	files := system.NewFiles()
	defer files.Gone()
	if asked.State != nil {
		files.Put(kubelet.GetCPUManagerStateFilePath(system.Conf.VarLibKubeletRootDir), *asked.State)
	}
	known := map[int32]*extension.CPUInfo{}
	for id := int32(0); id < 4096; id++ {
		known[id] = &extension.CPUInfo{}
	}
	found, err := (&nodeTopoInformer{podsInformer: podsInformerOf(asked.Pods)}).calKubeletAllocatedCPUs(known)
	if err != nil {
		return map[string]bool{"error": true}, nil
	}
	taken := []int{}
	for id := 0; id < 4096; id++ {
		if known[int32(id)] == nil {
			taken = append(taken, id)
		}
	}
	return map[string]any{
		"allocations": append([]extension.PodCPUAlloc{}, found...), "takenCPUs": cpuset.NewCPUSet(taken...).String(),
	}, nil
}

func (asked topologyQuestion) sharePools() (any, error) {
	taken, err := cpuset.Parse(asked.KubeletTakenCPUs)
	if err != nil {
		return nil, err
	}
	reserved, err := cpuset.Parse(asked.ReservedCPUs)
	if err != nil {
		return nil, err
	}
	values := map[any]any{metriccache.NodeCPUInfoKey: (*metriccache.NodeCPUInfo)(asked.machine())}
	informer := &nodeTopoInformer{podsInformer: podsInformerOf(asked.Pods), metricCache: &metriccache.Known{Values: values}}
	_, _, pool, err := informer.calCPUTopology()
	if err != nil {
		return nil, err
	}
	for _, id := range taken.ToSlice() {
		delete(pool, int32(id))
	}
	shared, beShared := informer.calCPUSharePools(pool)
	listed := func(pools []extension.CPUSharedPool) []any {
		found := []any{}
		for _, each := range removeSystemQOSCPUs(removeNodeReservedCPUs(pools, reserved), asked.SystemQOS) {
			found = append(found, map[string]any{"socket": each.Socket, "node": each.Node, "cpuset": each.CPUSet})
		}
		return found
	}
	return map[string]any{"shared": listed(shared), "beShared": listed(beShared)}, nil
}

func (asked topologyQuestion) zones() (any, error) {
	numa := &koordletutil.NodeNUMAInfo{
		MemInfoMap: map[int32]*koordletutil.MemInfo{}, HugePagesMap: map[int32]map[uint64]*koordletutil.HugePagesInfo{},
	}
	cpus := &metriccache.NodeCPUInfo{TotalInfo: koordletutil.CPUTotalInfo{NodeToCPU: map[int32][]koordletutil.ProcessorInfo{}}}
	for i, node := range asked.NUMANodes {
		id, memory, ids := int32(i), &koordletutil.MemInfo{}, []int32{}
		if err := errors.Join(json.Unmarshal(node["memTotalKiB"], &memory.MemTotal), json.Unmarshal(node["cpus"], &ids)); err != nil {
			return nil, err
		}
		numa.NUMAInfos = append(numa.NUMAInfos, koordletutil.NUMAInfo{NUMANodeID: id, MemInfo: memory})
		numa.MemInfoMap[id] = memory
		cpus.TotalInfo.NodeToCPU[id] = make([]koordletutil.ProcessorInfo, len(ids))
		pages := map[uint64]uint64{}
		for _, member := range node {
			if json.Unmarshal(member, &pages) == nil {
				break
			}
		}
		numa.HugePagesMap[id] = map[uint64]*koordletutil.HugePagesInfo{}
		for size, count := range pages {
			numa.HugePagesMap[id][size] = &koordletutil.HugePagesInfo{NumPages: count, PageSize: size}
		}
	}
	gates := features.DefaultMutableKoordletFeatureGate
	if err := gates.SetFromMap(map[string]bool{string(features.HugePageReport): asked.HugePageReport}); err != nil {
		return nil, err
	}
	values := map[any]any{metriccache.NodeNUMAInfoKey: numa}
	list, err := (&nodeTopoInformer{metricCache: &metriccache.Known{Values: values}}).calTopologyZoneList(cpus)
	if err != nil {
		return nil, err
	}
	found := []any{}
	for _, zone := range list {
		amounts := map[string]int64{}
		for _, each := range zone.Resources {
			amounts[each.Name] = each.Capacity.Value()
		}
		found = append(found, map[string]any{"name": zone.Name, "type": zone.Type, "resources": amounts})
	}
	return map[string]any{"zones": found}, nil
}

func zonesOf(known []knownZone) v1alpha1.ZoneList {
	zones := v1alpha1.ZoneList{}
	for _, each := range known {
		zone := v1alpha1.Zone{Name: each.Name, Type: util.NodeZoneType}
		if each.Type != nil {
			zone.Type = *each.Type
		}
		for name, amount := range each.Resources {
			zone.Resources = append(zone.Resources, v1alpha1.ResourceInfo{Name: name, Capacity: amount, Allocatable: amount, Available: amount})
		}
		zones = append(zones, zone)
	}
	return zones
}

func (asked topologyQuestion) changed() (any, error) {
	var old *knownTopology
	var newer knownTopology
	if err := errors.Join(json.Unmarshal(asked.Old, &old), json.Unmarshal(asked.New, &newer)); err != nil {
		return nil, err
	}
	status := &nodeTopologyStatus{
		Annotations: newer.Annotations, Labels: newer.Labels, TopologyPolicy: v1alpha1.TopologyManagerPolicy(newer.Policy), Zones: zonesOf(newer.Zones),
	}
	var stored *v1alpha1.NodeResourceTopology
	if old != nil {
		stored = &v1alpha1.NodeResourceTopology{TopologyPolicies: old.Policies, Zones: zonesOf(old.Zones)}
		stored.Annotations, stored.Labels = old.Annotations, old.Labels
	}
	changed, _ := status.isChanged(stored)
	return map[string]bool{"changed": changed}, nil
}
