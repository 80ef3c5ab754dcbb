// in pkg/scheduler/plugins/nodenumaresource
package nodenumaresource

import (
	"strconv"

	nrtv1alpha1 "github.com/k8stopologyawareschedwg/noderesourcetopology-api/pkg/apis/topology/v1alpha1"
	corev1 "k8s.io/api/core/v1"

	"github.com/koordinator-sh/koordinator/pkg/answering"
)

type optionsQuestion struct {
	Annotations      map[string]string    `json:"annotations"`
	Zones            nrtv1alpha1.ZoneList `json:"zones"`
	TopologyPolicies []string             `json:"topologyPolicies"`
}

func init() { answering.Area("numa-topology-options", answering.Of(topologyOptions)) }

func topologyOptions(asked optionsQuestion) (any, error) {
	report := &nrtv1alpha1.NodeResourceTopology{TopologyPolicies: asked.TopologyPolicies, Zones: asked.Zones}
	report.Name, report.Annotations = "node", asked.Annotations
	manager := NewTopologyOptionsManager()
	(&nodeResourceTopologyEventHandler{topologyManager: manager}).OnAdd(report, false)
	options := manager.GetTopologyOptions("node")
	zones := map[string]map[corev1.ResourceName]int64{}
	for _, each := range options.NUMANodeResources {
		amounts := map[corev1.ResourceName]int64{}
		for name, amount := range each.Resources {
			amounts[name] = amount.Value()
			if name == corev1.ResourceCPU {
				amounts[name] = amount.MilliValue()
			}
		}
		zones[strconv.Itoa(each.Node)] = amounts
	}
	cpus := options.CPUTopology
	return map[string]any{
		"reservedCPUs": options.ReservedCPUs.String(), "numaTopologyPolicy": options.NUMATopologyPolicy, "zones": zones,
		"counts": map[string]int{"sockets": cpus.NumSockets, "numaNodes": cpus.NumNodes, "cores": cpus.NumCores, "cpus": cpus.NumCPUs},
	}, nil
}
