// in pkg/util/transformer
package transformer

import (
	"encoding/json"
	"errors"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/koordinator-sh/koordinator/apis/extension"
	slov1alpha1 "github.com/koordinator-sh/koordinator/apis/slo/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
)

type writeQuestion struct {
	Compare   string                                             `json:"compare"`
	Op        string                                             `json:"op"`
	Old       json.RawMessage                                    `json:"old"`
	New       float64                                            `json:"new"`
	Resource  corev1.ResourceName                                `json:"resource"`
	Ratio     float64                                            `json:"ratio"`
	Resources corev1.ResourceList                                `json:"resources"`
	Status    *extension.ResourceStatus                          `json:"status"`
	Devices   extension.DeviceAllocations                        `json:"allocations"`
	Name      string                                             `json:"name"`
	UID       types.UID                                          `json:"uid"`
	Priority  extension.PriorityClass                            `json:"priority"`
	Info      *extension.CPUBasicInfo                            `json:"info"`
	Specs     map[string]extension.ExtendedResourceContainerSpec `json:"containers"`
}

var written = map[string]string{
	"amplificationRatioSet":        extension.AnnotationNodeResourceAmplificationRatio,
	"cpuNormalizationRatioSet":     extension.AnnotationCPUNormalizationRatio,
	"rawAllocatableSet":            extension.AnnotationNodeRawAllocatable,
	"resourceStatusSet":            extension.AnnotationResourceStatus,
	"deviceAllocatedSet":           extension.AnnotationDeviceAllocated,
	"reservationAllocatedSet":      extension.AnnotationReservationAllocated,
	"reservationAllocatedRemove":   extension.AnnotationReservationAllocated,
	"originExtendedAllocatableSet": slov1alpha1.NodeOriginExtendedAllocatableAnnotationKey,
	"thirdPartyAllocationSet":      slov1alpha1.NodeThirdPartyAllocationsAnnotationKey,
	"extendedResourceSpecSet":      extension.AnnotationExtendedResourceSpec,
	"cpuBasicInfoSet":              extension.AnnotationCPUBasicInfo,
}

func init() { answering.Area("api-annotation-encode", answering.Of(write)) }

func write(asked writeQuestion) (any, error) {
	if asked.Op == "cpuNormalizationRatioDiffers" {
		var old float64
		if err := json.Unmarshal(asked.Old, &old); err != nil {
			return nil, err
		}
		return map[string]bool{"changed": extension.IsCPUNormalizationRatioDifferent(old, asked.New)}, nil
	}
	key, known := written[asked.Op]
	if !known {
		return nil, errors.New("nobody writes " + asked.Op)
	}
	var old *string
	if len(asked.Old) > 0 {
		if err := json.Unmarshal(asked.Old, &old); err != nil {
			return nil, err
		}
	}
	annotations := map[string]string{}
	if old != nil {
		annotations[key] = *old
	}
	changed, err := asked.into(annotations)
	if err != nil {
		return map[string]bool{"error": true}, nil
	}
	answer := map[string]any{"text": nil, "compare": asked.Compare}
	if text, found := annotations[key]; found {
		answer["text"] = text
	}
	if changed != nil {
		answer["changed"] = *changed
	}
	return answer, nil
}

// into writes to annotations; says whether something changed, where the original does.
func (q writeQuestion) into(annotations map[string]string) (*bool, error) {
	meta := metav1.ObjectMeta{Annotations: annotations}
	node, pod := &corev1.Node{ObjectMeta: meta}, &corev1.Pod{ObjectMeta: meta}
	reservation := &metav1.ObjectMeta{Name: q.Name, UID: q.UID}
	changed, err := false, error(nil)
	switch q.Op {
	case "amplificationRatioSet":
		changed, err = extension.SetNodeResourceAmplificationRatio(node, q.Resource, extension.Ratio(q.Ratio))
		return &changed, err
	case "cpuNormalizationRatioSet":
		changed = extension.SetCPUNormalizationRatio(node, q.Ratio)
		return &changed, nil
	case "cpuBasicInfoSet":
		changed = extension.SetCPUBasicInfo(annotations, q.Info)
		return &changed, nil
	case "reservationAllocatedRemove":
		changed, err = extension.RemoveReservationAllocated(pod, reservation)
		return &changed, err
	case "reservationAllocatedSet":
		extension.SetReservationAllocated(pod, reservation)
	case "rawAllocatableSet":
		extension.SetNodeRawAllocatable(node, q.Resources)
	case "resourceStatusSet":
		return nil, extension.SetResourceStatus(pod, q.Status)
	case "deviceAllocatedSet":
		return nil, extension.SetDeviceAllocations(pod, q.Devices)
	case "originExtendedAllocatableSet":
		return nil, slov1alpha1.SetOriginExtendedAllocatableRes(annotations, q.Resources)
	case "thirdPartyAllocationSet":
		return nil, slov1alpha1.SetThirdPartyAllocation(annotations, q.Name, q.Priority, q.Resources)
	case "extendedResourceSpecSet":
		return nil, extension.SetExtendedResourceSpec(pod, &extension.ExtendedResourceSpec{Containers: q.Specs})
	}
	return nil, nil
}
