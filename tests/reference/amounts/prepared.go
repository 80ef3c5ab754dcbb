// in pkg/slo-controller/noderesource/plugins/batchresource
package batchresource

import (
	"encoding/json"
	"errors"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/koordinator-sh/koordinator/apis/extension"
	slov1alpha1 "github.com/koordinator-sh/koordinator/apis/slo/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/slo-controller/noderesource/framework"
	resutil "github.com/koordinator-sh/koordinator/pkg/slo-controller/noderesource/plugins/util"
)

func opOf(input json.RawMessage) string {
	var asked struct {
		Op string `json:"op"`
	}
	_ = json.Unmarshal(input, &asked)
	return asked.Op
}

type prepareQuestion struct {
	Node struct {
		Annotations map[string]string   `json:"annotations"`
		Capacity    corev1.ResourceList `json:"capacity"`
		Allocatable corev1.ResourceList `json:"allocatable"`
	} `json:"node"`
	Calculated map[corev1.ResourceName]*resource.Quantity `json:"calculated"`
	Resets     []corev1.ResourceName                      `json:"resets"`
	Ratio      string                                     `json:"cpuNormalizationRatio"`
}

func (asked *prepareQuestion) prepared() (*corev1.Node, map[string]int64, error) {
	result := framework.NewNodeResource()
	for name, amount := range asked.Calculated {
		result.Resources[name] = amount
	}
	for _, name := range asked.Resets {
		result.Resets[name] = true
	}
	if asked.Ratio != "" {
		result.Annotations[extension.AnnotationCPUNormalizationRatio] = asked.Ratio
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}}}
	for name, text := range asked.Node.Annotations {
		node.Annotations[name] = text
	}
	node.Status.Capacity, node.Status.Allocatable = corev1.ResourceList{}, corev1.ResourceList{}
	for name, amount := range asked.Node.Capacity {
		node.Status.Capacity[name] = amount
	}
	for name, amount := range asked.Node.Allocatable {
		node.Status.Allocatable[name] = amount
	}
	failed := (&Plugin{}).Prepare(nil, node, result)
	origin, err := slov1alpha1.GetOriginExtendedAllocatable(node.Annotations)
	if err != nil {
		return nil, nil, err
	}
	return node, whole(origin.Resources), failed
}

func whole(amounts corev1.ResourceList, only ...corev1.ResourceName) map[string]int64 {
	values := map[string]int64{}
	for name, amount := range amounts {
		if len(only) == 0 || name == only[0] || name == only[1] {
			values[string(name)] = amount.Value()
		}
	}
	return values
}

func prepareAnswer(asked prepareQuestion) (any, error) {
	node, origin, _ := asked.prepared()
	return map[string]any{
		"capacity":                  whole(node.Status.Capacity, ResourceNames...),
		"allocatable":               whole(node.Status.Allocatable, ResourceNames...),
		"originExtendedAllocatable": origin,
	}, nil
}

func divideAnswer(asked struct {
	Quantity *resource.Quantity `json:"quantity"`
	Value    *resource.Quantity `json:"value"`
	Zones    *float64           `json:"zones"`
	N        *float64           `json:"n"`
}) (any, error) {
	amount, parts := asked.Quantity, asked.Zones
	if amount == nil {
		amount = asked.Value
	}
	if parts == nil {
		parts = asked.N
	}
	divided := resutil.DivideResourceList(corev1.ResourceList{corev1.ResourceCPU: *amount}, *parts)
	return map[string]int64{"milli": divided.Cpu().MilliValue()}, nil
}

type subtractQuestion struct {
	Op          string                                     `json:"op"`
	Calculated  map[corev1.ResourceName]*resource.Quantity `json:"calculated"`
	Annotations map[string]string                          `json:"annotations"`
	Ratio       float64                                    `json:"cpuNormalizationRatio"`
	Class       extension.PriorityClass                    `json:"class"`
}

func subtractAnswer(asked subtractQuestion) (any, error) {
	switch asked.Op {
	case "sum":
		sum, err := slov1alpha1.GetThirdPartyAllocatedResByPriority(asked.Annotations, asked.Class)
		if err != nil || sum == nil {
			return map[string]any{"sum": nil, "error": err != nil}, nil
		}
		return map[string]any{"sum": whole(sum), "error": false}, nil
	case "prepare":
		question := prepareQuestion{Calculated: asked.Calculated}
		question.Node.Annotations = asked.Annotations
		if asked.Ratio != 0 {
			question.Ratio = strconv.FormatFloat(asked.Ratio, 'f', -1, 64)
		}
		node, origin, err := question.prepared()
		left := map[corev1.ResourceName]any{}
		for _, name := range ResourceNames {
			left[name] = nil
			if amount, has := node.Status.Allocatable[name]; has {
				left[name] = amount.Value()
			}
		}
		return map[string]any{"origin": origin, "kubeTotal": left, "error": err != nil}, nil
	}
	return nil, errors.New("no part of this module")
}
