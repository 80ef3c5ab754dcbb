// in pkg/util/fieldindex
package fieldindex

import (
	"fmt"

	k8sfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/featuregate"

	slov1alpha1 "github.com/koordinator-sh/koordinator/apis/slo/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/features"
	utilfeature "github.com/koordinator-sh/koordinator/pkg/util/feature"
)

var (
	ofManager   = utilfeature.DefaultMutableFeatureGate.DeepCopy()
	ofScheduler = k8sfeature.DefaultMutableFeatureGate.DeepCopy()
)

func init() { answering.Area("api-feature-gates", answering.Of(gates)) }

type gateQuestion struct {
	Op        string               `json:"op"`
	Component string               `json:"component"`
	Flag      string               `json:"flag"`
	Query     []string             `json:"query"`
	NodeSLO   *slov1alpha1.NodeSLO `json:"nodeSLO"`
}

func gates(asked gateQuestion) (any, error) {
	if asked.Op == "disabledByNodeSLO" {
		disabled, err := features.IsFeatureDisabled(asked.NodeSLO, featuregate.Feature(asked.Query[0]))
		answer := map[string]any{"disabled": disabled}
		if err != nil {
			answer["error"] = true
		}
		return answer, nil
	}
	var gates featuregate.MutableFeatureGate
	var err error
	switch asked.Component {
	case "manager", "descheduler":
		gates = ofManager.DeepCopy()
		err = gates.Set(asked.Flag)
	case "scheduler":
		gates = ofScheduler.DeepCopy()
		err = gates.Set(asked.Flag)
	case "koordlet":
		gates = features.DefaultMutableKoordletFeatureGate.DeepCopy()
		wanted := map[string]bool{}
		if err = cliflag.NewMapStringBool(&wanted).Set(asked.Flag); err == nil {
			err = gates.SetFromMap(wanted)
		}
	default:
		return nil, fmt.Errorf("no component %s", asked.Component)
	}
	if err != nil {
		return map[string]any{"error": true}, nil
	}
	enabled := map[string]bool{}
	for _, name := range asked.Query {
		enabled[name] = gates.Enabled(featuregate.Feature(name))
	}
	return map[string]any{"enabled": enabled}, nil
}
