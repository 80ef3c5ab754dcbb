// in pkg/util/transformer
package transformer

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/koordinator-sh/koordinator/apis/extension"
	schedulingv1alpha1 "github.com/koordinator-sh/koordinator/apis/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
)

type orderQuestion struct {
	Op   string `json:"op"`
	Pods []struct {
		Name  string  `json:"name"`
		Index *string `json:"index"`
	} `json:"pods"`
	Details schedulingv1alpha1.NodeFailedDetails `json:"details"`
}

func init() { answering.Area("api-ordering", answering.Of(ordered)) }

func ordered(asked orderQuestion) (any, error) {
	if asked.Op == "failedDetails" {
		extension.SortNodeFailedDetails(asked.Details)
		found := []any{}
		for _, each := range asked.Details {
			found = append(found, map[string]any{"failedPlugin": each.FailedPlugin, "reason": each.Reason,
				"preemptMightHelp": each.PreemptMightHelp, "failedNodes": each.FailedNodes})
		}
		return map[string]any{"result": found}, nil
	}
	pods := []*corev1.Pod{}
	for _, each := range asked.Pods {
		pod := &corev1.Pod{}
		pod.Name = each.Name
		if each.Index != nil {
			pod.Annotations = map[string]string{extension.AnnotationGangPodNetworkTopologyIndex: *each.Index}
		}
		pods = append(pods, pod)
	}
	extension.SortPodsByIndex(pods)
	names := []string{}
	for _, pod := range pods {
		names = append(names, pod.Name)
	}
	return map[string]any{"result": names}, nil
}
