// in pkg/util/transformer
package transformer

import (
	"encoding/json"
	"errors"

	nrt "github.com/k8stopologyawareschedwg/noderesourcetopology-api/pkg/apis/topology/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/koordinator-sh/koordinator/apis/extension"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/util"
)

type listQuestion struct {
	Op        string                `json:"op"`
	A         json.RawMessage       `json:"a"`
	B         json.RawMessage       `json:"b"`
	Resource  corev1.ResourceName   `json:"resource"`
	Threshold float64               `json:"threshold"`
	Names     []corev1.ResourceName `json:"names"`
	Quantity  resource.Quantity     `json:"quantity"`
	Factor    float64               `json:"factor"`
}

func init() { answering.Area("api-resource-lists", answering.Of(listed)) }

func listed(asked listQuestion) (any, error) {
	found, err := asked.result()
	return map[string]any{"result": found}, err
}

// pair reads `a` and `b`.
func pair[T any](q listQuestion) (a, b T, err error) {
	if err = json.Unmarshal(q.A, &a); err == nil && len(q.B) > 0 {
		err = json.Unmarshal(q.B, &b)
	}
	return a, b, err
}

func (q listQuestion) result() (any, error) {
	switch q.Op {
	case "multiply":
		return util.MultiplyQuant(q.Quantity, q.Factor), nil
	case "multiplyMilli":
		return util.MultiplyMilliQuant(q.Quantity, q.Factor), nil
	case "zonesToMap", "mergeZones", "trimZones":
		a, b, err := pair[nrt.ZoneList](q)
		switch {
		case err != nil:
			return nil, err
		case q.Op == "mergeZones":
			return util.MergeZoneList(a, b), nil
		case q.Op == "trimZones":
			return util.TrimDifferentZone(a, b), nil
		}
		return util.ZoneListToZoneResourceList(a), nil
	case "mapToZones":
		a, _, err := pair[map[string]corev1.ResourceList](q)
		return util.ZoneResourceListToZoneList(a), err
	case "capAllocToZones":
		a, _, err := pair[map[string]util.ZoneResources](q)
		return util.ZoneResourcesToZoneList(a), err
	}
	a, b, err := pair[corev1.ResourceList](q)
	if err != nil {
		return nil, err
	}
	switch q.Op {
	case "min":
		return util.MinResourceList(a, b), nil
	case "equalIgnoringZero":
		return util.IsResourceListEqualIgnoreZeroValues(a, b), nil
	case "differs":
		return util.IsResourceDiff(a, b, q.Resource, q.Threshold), nil
	case "leqCompletely":
		return util.LessThanOrEqualCompletely(a, b), nil
	case "exactMatch":
		var spec *extension.ExactMatchReservationSpec
		if q.Names != nil {
			spec = &extension.ExactMatchReservationSpec{ResourceNames: q.Names}
		}
		return extension.ExactMatchReservation(a, b, spec), nil
	}
	return nil, errors.New("nobody answers " + q.Op)
}
