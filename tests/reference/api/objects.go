// in pkg/util/transformer
package transformer

import (
	"encoding/json"
	"errors"

	corev1 "k8s.io/api/core/v1"
	k8sfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"

	schedulingv1alpha1 "github.com/koordinator-sh/koordinator/apis/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/apis/thirdparty/scheduler-plugins/pkg/apis/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/features"
)

func init() { answering.Area("api-object-normalization", answering.Of(normalised)) }

var switched = []featuregate.Feature{
	features.PriorityTransformer, features.PreemptionPolicyTransformer, features.ReplaceResourcesTransformer,
}

// normalised asks several times: what a map of replacements does can depend on its order.
func normalised(asked struct {
	Kind   string          `json:"kind"`
	Gates  []string        `json:"gates"`
	Object json.RawMessage `json:"object"`
}) (any, error) {
	gates := map[string]bool{}
	for _, name := range switched {
		gates[string(name)] = false
	}
	for _, name := range asked.Gates {
		if _, known := gates[name]; !known {
			return nil, errors.New("no gate " + name)
		}
		gates[name] = true
	}
	if err := k8sfeature.DefaultMutableFeatureGate.SetFromMap(gates); err != nil {
		return nil, err
	}
	first, answer := "", map[string]any{}
	for range 8 {
		object, err := transformed(asked.Kind, asked.Object)
		if err != nil {
			return nil, err
		}
		found, err := asMap(object)
		if err != nil {
			return nil, err
		}
		if status, isMap := found["status"].(map[string]any); isMap {
			delete(status, "daemonEndpoints")
		}
		text, _ := json.Marshal(found)
		if first != "" && first != string(text) {
			return nil, errors.New("the answer depends on the order of a map")
		}
		first, answer = string(text), found
	}
	return map[string]any{"object": answer}, nil
}

func transformed(kind string, text json.RawMessage) (any, error) {
	transforms := map[string]struct {
		object    any
		transform func(any) (any, error)
	}{
		"Pod":          {&corev1.Pod{}, TransformPodFactory()},
		"Node":         {&corev1.Node{}, TransformNode},
		"Device":       {&schedulingv1alpha1.Device{}, TransformDevice},
		"ElasticQuota": {&v1alpha1.ElasticQuota{}, TransformElasticQuota},
	}
	of, known := transforms[kind]
	if !known {
		return nil, errors.New("no kind " + kind)
	}
	if err := json.Unmarshal(text, of.object); err != nil {
		return nil, err
	}
	return of.transform(of.object)
}
