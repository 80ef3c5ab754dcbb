// in pkg/scheduler/plugins/deviceshare
package deviceshare

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	apiext "github.com/koordinator-sh/koordinator/apis/extension"
	schedulingv1alpha1 "github.com/koordinator-sh/koordinator/apis/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
)

type requestQuestion struct {
	Op       string                        `json:"op"`
	Requests corev1.ResourceList           `json:"requests"`
	Type     schedulingv1alpha1.DeviceType `json:"type"`
	Request  corev1.ResourceList           `json:"request"`
	Hint     *apiext.DeviceHint            `json:"hint"`
	Devices  []struct {
		Minor  int32             `json:"minor"`
		Labels map[string]string `json:"labels"`
	} `json:"devices"`
	Allocation corev1.ResourceList `json:"allocation"`
	Total      corev1.ResourceList `json:"total"`
}

func init() { answering.Area("device-request-normalise", answering.Of(requested)) }

func requested(asked requestQuestion) (any, error) {
	switch asked.Op {
	case "normalise":
		return sameEachTime(asked.normalised)
	case "instances":
		return asked.instances()
	case "fillMemory":
		gpus := []*apiext.DeviceAllocation{{Resources: asked.Allocation}}
		device := newNodeDevice()
		device.deviceTotal[schedulingv1alpha1.GPU] = deviceResources{0: asked.Total}
		if err := fillGPUTotalMem(apiext.DeviceAllocations{schedulingv1alpha1.GPU: gpus}, device); err != nil {
			return map[string]bool{"ok": false}, nil
		}
		return map[string]any{"ok": true, "resources": textsOf(gpus[0].Resources)}, nil
	}
	return nil, fmt.Errorf("no op %q", asked.Op)
}

func (asked requestQuestion) normalised() (any, error) {
	byType, err := GetPodDeviceRequests(podOf(asked.Requests))
	if err != nil {
		kind := "combination"
		if strings.HasPrefix(err.Error(), "invalid resource unit") {
			kind = "unit"
		}
		return map[string]any{"ok": false, "errorKind": kind}, nil
	}
	texts := map[string]any{}
	for deviceType, amounts := range byType {
		texts[string(deviceType)] = textsOf(amounts)
	}
	answer := map[string]any{"ok": true, "byType": texts}
	if gpus, some := byType[schedulingv1alpha1.GPU]; some {
		each, count, isShared := calcDesiredRequestsAndCountForGPU(gpus)
		answer["gpu"] = map[string]any{"count": count, "shared": isShared, "perInstance": textsOf(each)}
	}
	return answer, nil
}

func (asked requestQuestion) instances() (any, error) {
	device := newNodeDevice()
	total := deviceResources{}
	for _, each := range asked.Devices {
		total[int(each.Minor)] = corev1.ResourceList{}
		device.deviceInfos = map[schedulingv1alpha1.DeviceType][]*schedulingv1alpha1.DeviceInfo{
			asked.Type: append(device.deviceInfos[asked.Type],
				&schedulingv1alpha1.DeviceInfo{Minor: ptr.To(each.Minor), Labels: each.Labels}),
		}
	}
	device.deviceTotal[asked.Type] = total
	handler, known := deviceHandlers[asked.Type]
	if !known {
		return nil, fmt.Errorf("no type %q", asked.Type)
	}
	each, count, status := handler.CalcDesiredRequestsAndCount(nil, nil, asked.Request, device, asked.Hint, nil)
	if !status.IsSuccess() {
		return map[string]any{"ok": false, "reason": status.Message()}, nil
	}
	return map[string]any{"ok": true, "count": count, "perInstance": textsOf(each)}, nil
}

func podOf(requests corev1.ResourceList) *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{
		{Resources: corev1.ResourceRequirements{Requests: requests}}}}}
}

func textsOf(amounts corev1.ResourceList) map[string]string {
	texts := map[string]string{}
	for name, quantity := range amounts {
		texts[string(name)] = fmt.Sprint(quantity.Value())
	}
	return texts
}
