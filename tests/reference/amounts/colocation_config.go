// in pkg/slo-controller/noderesource
package noderesource

import (
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/koordinator-sh/koordinator/apis/configuration"
	slov1alpha1 "github.com/koordinator-sh/koordinator/apis/slo/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/slo-controller/config"
	"github.com/koordinator-sh/koordinator/pkg/slo-controller/nodemetric"
	"github.com/koordinator-sh/koordinator/pkg/util/sloconfig"
)

type colocationQuestion struct {
	Op  string `json:"op"`
	Old struct {
		Config    configuration.ColocationCfg `json:"config"`
		Available bool                        `json:"available"`
		Error     bool                        `json:"error"`
	} `json:"old"`
	Data     *map[string]string                `json:"configMapData"`
	Config   configuration.ColocationCfg       `json:"colocationConfig"`
	Strategy *configuration.ColocationStrategy `json:"strategy"`
	Node     corev1.Node                       `json:"node"`
	OldSpec  *slov1alpha1.NodeMetricSpec       `json:"oldSpec"`
	Failed   bool                              `json:"configErrorStatus"`
}

func init() { answering.Area("colocation-config", answering.Of(colocationAnswer)) }

func colocationAnswer(asked colocationQuestion) (any, error) {
	switch asked.Op {
	case "sync":
		handler := config.AnsweringHandler(asked.Old.Config, asked.Old.Available, asked.Old.Error)
		var configMap *corev1.ConfigMap
		if asked.Data != nil {
			configMap = &corev1.ConfigMap{Data: *asked.Data}
		}
		changed := handler.SyncCacheIfChanged(configMap)
		return map[string]any{"changed": changed, "state": config.AnsweringState(handler)}, nil
	case "nodeStrategy":
		return map[string]any{"strategy": sloconfig.GetNodeColocationStrategy(&asked.Config, &asked.Node)}, nil
	case "isValid":
		return map[string]any{"valid": sloconfig.IsColocationStrategyValid(asked.Strategy)}, nil
	case "nodeMetricSpec":
		kept := config.AnsweringHandler(asked.Config, true, asked.Failed)
		spec, err := nodemetric.AnsweringSpec(kept, &asked.Node, asked.OldSpec)
		return map[string]any{"spec": spec}, err
	case "isDisabled":
		reconciler := &NodeResourceReconciler{cfgCache: config.AnsweringHandler(asked.Config, true, false)}
		return map[string]any{"disabled": reconciler.isColocationCfgDisabled(&asked.Node)}, nil
	}
	return nil, errors.New("no such question")
}
