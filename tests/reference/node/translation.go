// in pkg/webhook/pod/mutating
package mutating

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/koordinator-sh/koordinator/apis/extension"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/util"
)

func init() { answering.Area("api-resource-translation", answering.Of(translated)) }

type translationQuestion struct {
	Op       string              `json:"op"`
	Class    string              `json:"class"`
	Resource corev1.ResourceName `json:"resource"`
	Requests corev1.ResourceList `json:"requests"`
	Limits   corev1.ResourceList `json:"limits"`
}

func translated(asked translationQuestion) (any, error) {
	switch asked.Op {
	case "name":
		class := extension.GetPodPriorityClassByName(asked.Class)
		return map[string]any{"resource": extension.TranslateResourceNameByPriorityClass(class, asked.Resource)}, nil
	case "values":
		container := &corev1.Container{Resources: corev1.ResourceRequirements{Requests: asked.Requests}}
		return map[string]any{
			"batchCPU":    util.GetContainerBatchMilliCPURequest(container),
			"batchMemory": util.GetContainerBatchMemoryByteRequest(container),
			"midCPU":      util.GetContainerMidMilliCPURequest(container),
			"midMemory":   util.GetContainerMidMemoryByteRequest(container),
		}, nil
	}
	pod := &corev1.Pod{}
	pod.Labels = map[string]string{extension.LabelPodPriorityClass: asked.Class}
	pod.Spec.Containers = []corev1.Container{
		{Resources: corev1.ResourceRequirements{Requests: asked.Requests, Limits: asked.Limits}},
	}
	if asked.Class != "" {
		if err := (&PodMutatingHandler{}).mutatePodResourceSpec(pod); err != nil {
			return nil, err
		}
	}
	left := pod.Spec.Containers[0].Resources
	return map[string]any{"requests": left.Requests, "limits": left.Limits}, nil
}
