// in pkg/runtimeproxy/resexecutor/cri
package cri

import (
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/koordinator-sh/koordinator/apis/runtime/v1alpha1"
)

// Resources as an area writes them.
type Resources struct {
	CPUPeriod              int64             `json:"cpuPeriod,omitempty"`
	CPUQuota               int64             `json:"cpuQuota,omitempty"`
	CPUShares              int64             `json:"cpuShares,omitempty"`
	MemoryLimitInBytes     int64             `json:"memoryLimitInBytes,omitempty"`
	OomScoreAdj            int64             `json:"oomScoreAdj,omitempty"`
	CpusetCpus             string            `json:"cpusetCpus,omitempty"`
	CpusetMems             string            `json:"cpusetMems,omitempty"`
	Unified                map[string]string `json:"unified,omitempty"`
	MemorySwapLimitInBytes int64             `json:"memorySwapLimitInBytes,omitempty"`
}

// Message of them.
func (r *Resources) Message() *v1alpha1.LinuxContainerResources {
	if r == nil {
		return nil
	}
	return &v1alpha1.LinuxContainerResources{
		CpuPeriod: r.CPUPeriod, CpuQuota: r.CPUQuota, CpuShares: r.CPUShares, MemoryLimitInBytes: r.MemoryLimitInBytes,
		OomScoreAdj: r.OomScoreAdj, CpusetCpus: r.CpusetCpus, CpusetMems: r.CpusetMems, Unified: r.Unified,
		MemorySwapLimitInBytes: r.MemorySwapLimitInBytes,
	}
}

// ResourcesOf a message.
func ResourcesOf(m *v1alpha1.LinuxContainerResources) *Resources {
	if m == nil {
		return nil
	}
	return &Resources{
		m.CpuPeriod, m.CpuQuota, m.CpuShares, m.MemoryLimitInBytes, m.OomScoreAdj, m.CpusetCpus, m.CpusetMems, m.Unified,
		m.MemorySwapLimitInBytes,
	}
}

// WithAnswer of a hook.
func WithAnswer(current, response *Resources) *Resources {
	return ResourcesOf(updateResource(current.Message(), response.Message()))
}

// WithUpdate that a runtime is asked for.
func WithUpdate(cached, request *Resources) *Resources {
	var asked *runtimeapi.LinuxContainerResources
	if request != nil {
		asked = transferToCRIResources(request.Message())
	}
	return ResourcesOf(updateResourceByUpdateContainerResourceRequest(cached.Message(), transferToKoordResources(asked)))
}
