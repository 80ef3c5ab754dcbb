// in pkg/koordlet/statesinformer
package statesinformer

import (
	corev1 "k8s.io/api/core/v1"

	slov1alpha1 "github.com/koordinator-sh/koordinator/apis/slo/v1alpha1"
)

// Known is an informer that knows what a question says.
type Known struct {
	StatesInformer
	NodeSLO    *slov1alpha1.NodeSLO
	MetricSpec *slov1alpha1.NodeMetricSpec
	Pods       []*corev1.Pod
}

func (k *Known) GetNodeSLO() *slov1alpha1.NodeSLO { return k.NodeSLO }

func (k *Known) GetNodeMetricSpec() *slov1alpha1.NodeMetricSpec { return k.MetricSpec }

func (k *Known) GetAllPods() []*PodMeta {
	metas := []*PodMeta{}
	for _, pod := range k.Pods {
		metas = append(metas, &PodMeta{Pod: pod})
	}
	return metas
}
