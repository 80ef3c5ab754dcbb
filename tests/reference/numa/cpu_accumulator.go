// in pkg/scheduler/plugins/nodenumaresource
package nodenumaresource

import (
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/util/cpuset"
	schedulingconfig "github.com/koordinator-sh/koordinator/pkg/scheduler/apis/config"
)

type cpuQuestion struct {
	Topology      [][4]int `json:"topology"`
	MaxRefCount   int      `json:"maxRefCount"`
	AvailableCPUs string   `json:"availableCPUs"`
	PreferredCPUs string   `json:"preferredCPUs"`
	Allocated     []struct {
		CPU             int    `json:"cpu"`
		RefCount        int    `json:"refCount"`
		ExclusivePolicy string `json:"exclusivePolicy"`
	} `json:"allocated"`
	Needed          int    `json:"needed"`
	BindPolicy      string `json:"bindPolicy"`
	ExclusivePolicy string `json:"exclusivePolicy"`
	Strategy        string `json:"numaAllocateStrategy"`
}

func init() { answering.Area("cpu-accumulator", answering.Of(takenCPUs)) }

func takenCPUs(asked cpuQuestion) (any, error) {
	builder := NewCPUTopologyBuilder()
	for _, row := range asked.Topology {
		builder.AddCPUInfo(row[0], row[1], row[2], row[3])
	}
	topology := builder.Result()
	available, err := cpuset.Parse(asked.AvailableCPUs)
	if err != nil {
		return nil, err
	}
	preferred, err := cpuset.Parse(asked.PreferredCPUs)
	if err != nil {
		return nil, err
	}
	allocated := NewCPUDetails()
	for _, each := range asked.Allocated {
		info := topology.CPUDetails[each.CPU]
		info.RefCount = each.RefCount
		info.ExclusivePolicy = schedulingconfig.CPUExclusivePolicy(each.ExclusivePolicy)
		allocated[each.CPU] = info
	}
	cpus, err := takePreferredCPUs(topology, asked.MaxRefCount, available, preferred, allocated, asked.Needed,
		schedulingconfig.CPUBindPolicy(asked.BindPolicy), schedulingconfig.CPUExclusivePolicy(asked.ExclusivePolicy),
		schedulingconfig.NUMAAllocateStrategy(asked.Strategy))
	if err != nil {
		return map[string]string{"error": err.Error()}, nil
	}
	return map[string]string{"cpus": cpus.String()}, nil
}
