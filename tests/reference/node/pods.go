// in pkg/webhook/pod/validating
package validating

import (
	"context"
	"encoding/json"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/koordinator-sh/koordinator/apis/extension"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	evictutil "github.com/koordinator-sh/koordinator/pkg/koordlet/qosmanager/plugins/util"
	"github.com/koordinator-sh/koordinator/pkg/util"
)

type podQuestion struct {
	Op          string              `json:"op"`
	Pod         corev1.Pod          `json:"pod"`
	Text        *string             `json:"text"`
	Default     int64               `json:"default"`
	Annotation  *string             `json:"annotation"`
	Allocatable corev1.ResourceList `json:"allocatable"`
	Capacity    corev1.ResourceList `json:"capacity"`
}

func init() {
	answering.Area("api-qos-priority", answering.Of(classes))
	answering.Area("api-pod-resources", answering.Of(podAmounts))
	answering.Area("api-node-reservation", answering.Of(nodeReservation))
}

func classes(asked podQuestion) (any, error) {
	pod := &asked.Pod
	class := ""
	switch asked.Op {
	case "qosRaw":
		class = string(extension.GetPodQoSClassRaw(pod))
	case "kubeQoS":
		class = string(extension.GetKubeQosClass(pod))
	case "qos":
		class = string(extension.GetPodQoSClassWithDefault(pod))
	case "priorityRaw":
		class = string(extension.GetPodPriorityClassRaw(pod))
	case "priority":
		class = string(extension.GetPodPriorityClassWithDefault(pod))
	case "priorityValue":
		return map[string]any{"value": extension.GetPodPriorityValueWithDefault(pod)}, nil
	case "subPriority":
		if asked.Text != nil {
			pod.Labels = map[string]string{extension.LabelPodPriority: *asked.Text}
		}
		return map[string]any{"value": evictutil.GetPodPriorityLabel(pod, asked.Default)}, nil
	case "preemptionPolicy":
		if policy := extension.GetPodKoordPreemptionPolicy(pod); policy != nil {
			class = string(*policy)
		}
	case "preemptionPolicyDefault":
		class = string(*extension.GetPodKoordPreemptionPolicyWithDefault(pod))
	case "preemptible":
		return map[string]any{"allowed": extension.IsPodPreemptible(pod)}, nil
	case "admit":
		return admitted(pod)
	}
	return map[string]any{"class": class}, nil
}

func admitted(pod *corev1.Pod) (any, error) {
	raw, err := json.Marshal(pod)
	if err != nil {
		return nil, err
	}
	handler := &PodValidatingHandler{Decoder: admission.NewDecoder(clientgoscheme.Scheme)}
	request := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: raw}}}
	allowed, _, _ := handler.clusterColocationProfileValidatingPod(context.TODO(), request)
	return map[string]any{"allowed": allowed}, nil
}

func podAmounts(asked podQuestion) (any, error) {
	pod := &asked.Pod
	var result any
	switch asked.Op {
	case "requests":
		result = util.GetPodRequest(pod)
	case "cpuLimitMilli":
		result = util.GetPodMilliCPULimit(pod)
	case "batch":
		result = map[string]int64{
			"batchCPURequest":    util.GetPodBEMilliCPURequest(pod),
			"batchCPULimit":      util.GetPodBEMilliCPULimit(pod),
			"batchMemoryRequest": util.GetPodBEMemoryByteRequestIgnoreUnlimited(pod),
			"batchMemoryLimit":   util.GetPodBEMemoryByteLimit(pod),
		}
	case "extended":
		containers := map[string]extension.ExtendedResourceContainerSpec{}
		if found := util.GetPodExtendedResources(pod); found != nil {
			containers = found.Containers
		}
		result = containers
	}
	return map[string]any{"result": result}, nil
}

func nodeReservation(asked podQuestion) (any, error) {
	node := &corev1.Node{}
	node.Status.Allocatable, node.Status.Capacity = asked.Allocatable, asked.Capacity
	if asked.Annotation != nil {
		node.Annotations = map[string]string{extension.AnnotationNodeReservation: *asked.Annotation}
	}
	switch asked.Op {
	case "reservedCPUs":
		cpus, count := extension.GetReservedCPUs(node.Annotations)
		return map[string]any{"cpus": cpus, "count": count}, nil
	case "resources":
		return map[string]any{"resources": util.GetNodeReservationFromAnnotation(node.Annotations)}, nil
	case "trim":
		left, trimmed := util.TrimNodeAllocatableByNodeReservation(node)
		return map[string]any{"allocatable": left, "trimmed": trimmed}, nil
	}
	return map[string]any{"resources": util.GetNodeReservationFromKubelet(node)}, nil
}
