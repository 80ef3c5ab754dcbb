// in pkg/koordlet/util/kubelet
package kubelet

import (
	kubeletconfiginternal "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/utils/cpuset"

	"github.com/koordinator-sh/koordinator/pkg/answering"
	koordletutil "github.com/koordinator-sh/koordinator/pkg/koordlet/util"
)

type reservedQuestion struct {
	Op            string     `json:"op"`
	Topology      [][4]int32 `json:"topology"`
	Available     string     `json:"available"`
	Count         int        `json:"count"`
	KubeletConfig struct {
		CPUManagerPolicy   string            `json:"cpuManagerPolicy"`
		ReservedSystemCPUs string            `json:"reservedSystemCPUs"`
		SystemReserved     map[string]string `json:"systemReserved"`
		KubeReserved       map[string]string `json:"kubeReserved"`
		EvictionHard       map[string]string `json:"evictionHard"`
	} `json:"kubeletConfig"`
}

func init() { answering.Area("kubelet-reserved-cpus", answering.Of(reservedCPUs)) }

func reservedCPUs(asked reservedQuestion) (any, error) {
	processors := []koordletutil.ProcessorInfo{}
	total := koordletutil.CPUTotalInfo{
		CoreToCPU:   map[int32][]koordletutil.ProcessorInfo{},
		SocketToCPU: map[int32][]koordletutil.ProcessorInfo{},
	}
	for _, row := range asked.Topology {
		one := koordletutil.ProcessorInfo{CPUID: row[0], CoreID: row[1], SocketID: row[2], NodeID: row[3]}
		processors = append(processors, one)
		total.CoreToCPU[one.CoreID] = append(total.CoreToCPU[one.CoreID], one)
		total.SocketToCPU[one.SocketID] = append(total.SocketToCPU[one.SocketID], one)
	}
	total.NumberCPUs = int32(len(processors))
	topology := NewCPUTopology(&koordletutil.LocalCPUInfo{ProcessorInfos: processors, TotalInfo: total})
	var cpus cpuset.CPUSet
	var err error
	if asked.Op == "take" {
		var available cpuset.CPUSet
		if available, err = cpuset.Parse(asked.Available); err != nil {
			return nil, err
		}
		cpus, err = TakeByTopology(available, asked.Count, topology)
	} else {
		given := asked.KubeletConfig
		cpus, err = GetStaticCPUManagerPolicyReservedCPUs(topology, &kubeletconfiginternal.KubeletConfiguration{
			CPUManagerPolicy: given.CPUManagerPolicy, ReservedSystemCPUs: given.ReservedSystemCPUs,
			SystemReserved: given.SystemReserved, KubeReserved: given.KubeReserved, EvictionHard: given.EvictionHard,
		})
	}
	if err != nil {
		return map[string]bool{"error": true}, nil
	}
	return map[string]string{"cpus": cpus.String()}, nil
}
