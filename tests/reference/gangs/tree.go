// in pkg/scheduler/frameworkext/networktopology
package networktopology

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	schedulingv1alpha1 "github.com/koordinator-sh/koordinator/apis/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
)

type treeQuestion struct {
	Layers []schedulingv1alpha1.NetworkTopologySpec `json:"networkTopologySpec"`
	Nodes  []struct {
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels"`
	} `json:"nodes"`
}

func init() { answering.Area("topology-tree", answering.Of(grown)) }

func grown(asked treeQuestion) (any, error) {
	topology := &schedulingv1alpha1.ClusterNetworkTopology{}
	topology.Spec.NetworkTopologySpec = asked.Layers
	made, err := NewTree(topology)
	if err != nil {
		return map[string]string{"error": err.Error()}, nil
	}
	out := []string{}
	for _, each := range asked.Nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: each.Name, Labels: each.Labels}}
		if _, err := made.(*tree).getTreeNodesMeta(node); err != nil {
			out = append(out, each.Name)
		}
		made.AddNode(node)
	}
	makeStatus(made.GetSnapshot().TreeNode, topology)
	return map[string]any{"detailStatus": topology.Status.DetailStatus, "nodesLeftOut": out}, nil
}
