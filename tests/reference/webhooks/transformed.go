// in pkg/util/transformer
package transformer

import (
	"encoding/json"
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/util/fieldindex"
)

func init() { answering.Area("pod-transform", answering.Of(transformed)) }

type transformQuestion struct {
	Kind   string          `json:"kind"`
	Gates  []string        `json:"gates"`
	Object json.RawMessage `json:"object"`
}

// transformed asks several times: what a map of replacements does can depend on its order.
func transformed(asked transformQuestion) (any, error) {
	if err := fieldindex.Gates(asked.Gates...); err != nil {
		return nil, err
	}
	var first string
	var answer any
	for range 12 {
		found, err := asked.once()
		if err != nil {
			return nil, err
		}
		text, err := json.Marshal(found)
		if err != nil {
			return nil, err
		}
		if first == "" {
			first, answer = string(text), found
		}
		if first != string(text) {
			return nil, errors.New("the answer depends on the order of a map")
		}
	}
	return answer, nil
}

func (asked transformQuestion) once() (any, error) {
	if asked.Kind == "pod" {
		pod := &corev1.Pod{}
		if err := json.Unmarshal(asked.Object, pod); err != nil {
			return nil, err
		}
		_, err := TransformPodFactory()(pod)
		return map[string]any{"object": pod}, err
	}
	var given struct {
		Annotations map[string]string   `json:"annotations"`
		Allocatable corev1.ResourceList `json:"allocatable"`
		Capacity    corev1.ResourceList `json:"capacity"`
	}
	if err := json.Unmarshal(asked.Object, &given); err != nil {
		return nil, err
	}
	node := &corev1.Node{}
	node.Annotations = given.Annotations
	node.Status.Allocatable, node.Status.Capacity = given.Allocatable, given.Capacity
	_, err := TransformNode(node)
	return map[string]any{"allocatable": node.Status.Allocatable, "capacity": node.Status.Capacity}, err
}
