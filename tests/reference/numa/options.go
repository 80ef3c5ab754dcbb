// in pkg/scheduler/plugins/nodenumaresource
package nodenumaresource

import (
	"fmt"

	nrtv1alpha1 "github.com/k8stopologyawareschedwg/noderesourcetopology-api/pkg/apis/topology/v1alpha1"
	corev1 "k8s.io/api/core/v1"

	"github.com/koordinator-sh/koordinator/pkg/answering"
)

func init() { answering.Area("numa-topology-options", answering.Of(optionsOf)) }

func optionsOf(asked struct {
	Annotations map[string]string    `json:"annotations"`
	Zones       nrtv1alpha1.ZoneList `json:"zones"`
	Policies    []string             `json:"topologyPolicies"`
}) (any, error) {
	report := &nrtv1alpha1.NodeResourceTopology{Zones: asked.Zones, TopologyPolicies: asked.Policies}
	report.Name, report.Annotations = theNode, asked.Annotations
	if report.Annotations == nil {
		report.Annotations = map[string]string{}
	}
	options := NewTopologyOptions(report)
	zones := map[string]map[corev1.ResourceName]int64{}
	for _, each := range options.NUMANodeResources {
		amounts := map[corev1.ResourceName]int64{}
		for name, quantity := range each.Resources {
			if amounts[name] = quantity.Value(); name == corev1.ResourceCPU {
				amounts[name] = quantity.MilliValue()
			}
		}
		zones[fmt.Sprint(each.Node)] = amounts
	}
	cpus := options.CPUTopology
	return map[string]any{"reservedCPUs": options.ReservedCPUs.String(), "numaTopologyPolicy": options.NUMATopologyPolicy,
		"zones": zones, "counts": map[string]int{"sockets": cpus.NumSockets, "numaNodes": cpus.NumNodes,
			"cores": cpus.NumCores, "cpus": cpus.NumCPUs}}, nil
}
