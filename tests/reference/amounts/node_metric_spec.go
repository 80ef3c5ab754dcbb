// in pkg/slo-controller/nodemetric
package nodemetric

import (
	corev1 "k8s.io/api/core/v1"

	slov1alpha1 "github.com/koordinator-sh/koordinator/apis/slo/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/slo-controller/config"
)

// AnsweringSpec is what a node's NodeMetric is told.
func AnsweringSpec(kept config.ColocationCfgCache, node *corev1.Node, old *slov1alpha1.NodeMetricSpec) (*slov1alpha1.NodeMetricSpec, error) {
	return (&NodeMetricReconciler{cfgCache: kept}).getNodeMetricSpec(node, old)
}
