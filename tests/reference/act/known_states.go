// in pkg/koordlet/statesinformer
package statesinformer

import (
	topov1alpha1 "github.com/k8stopologyawareschedwg/noderesourcetopology-api/pkg/apis/topology/v1alpha1"
	corev1 "k8s.io/api/core/v1"

	slov1alpha1 "github.com/koordinator-sh/koordinator/apis/slo/v1alpha1"
)

// Known is an informer that knows what a question says.
type Known struct {
	StatesInformer
	Node     *corev1.Node
	NodeSLO  *slov1alpha1.NodeSLO
	Pods     []*PodMeta
	NodeTopo *topov1alpha1.NodeResourceTopology
}

func (k *Known) GetNode() *corev1.Node { return k.Node }

func (k *Known) GetNodeSLO() *slov1alpha1.NodeSLO { return k.NodeSLO }

func (k *Known) GetAllPods() []*PodMeta { return k.Pods }

func (k *Known) GetNodeTopo() *topov1alpha1.NodeResourceTopology { return k.NodeTopo }

// MetasOf wraps pods.
func MetasOf(pods []*corev1.Pod) []*PodMeta {
	metas := []*PodMeta{}
	for _, pod := range pods {
		metas = append(metas, &PodMeta{Pod: pod})
	}
	return metas
}
