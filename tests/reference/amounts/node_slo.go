// in pkg/slo-controller/nodeslo
package nodeslo

import (
	"encoding/json"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/koordinator-sh/koordinator/apis/configuration"
	"github.com/koordinator-sh/koordinator/pkg/answering"
)

type nodeSLOQuestion struct {
	Previous *map[string]string `json:"previousData"`
	Data     *map[string]string `json:"data"`
	Node     corev1.Node        `json:"node"`
}

var keysTold = map[string]string{
	" ThresholdCfg,":       configuration.ResourceThresholdConfigKey,
	" ResourceQOSCfg,":     configuration.ResourceQOSConfigKey,
	" CPUBurstCfg,":        configuration.CPUBurstConfigKey,
	" SystemCfg,":          configuration.SystemConfigKey,
	" HostApplicationCfg,": configuration.HostApplicationConfigKey,
}

func init() { answering.Area("nodeslo-merge", answering.Of(nodeSLOAnswer)) }

func nodeSLOAnswer(asked nodeSLOQuestion) (any, error) {
	told := record.NewFakeRecorder(100)
	handler := NewSLOCfgHandlerForConfigMapEvent(nil, DefaultSLOCfg(), told)
	if asked.Previous != nil {
		handler.SyncCacheIfChanged(&corev1.ConfigMap{Data: *asked.Previous})
	}
	for len(told.Events) > 0 {
		<-told.Events
	}
	var configMap *corev1.ConfigMap
	if asked.Data != nil {
		configMap = &corev1.ConfigMap{Data: *asked.Data}
	}
	handler.SyncCacheIfChanged(configMap)
	unread := []string{}
	for len(told.Events) > 0 {
		event := <-told.Events
		for words, key := range keysTold {
			if strings.Contains(event, words) {
				unread = append(unread, key)
			}
		}
	}
	spec, err := (&NodeSLOReconciler{sloCfgCache: handler}).getNodeSLOSpec(&asked.Node, nil)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	shown := map[string]any{}
	if err := json.Unmarshal(text, &shown); err != nil {
		return nil, err
	}
	delete(shown, "extensions")
	return map[string]any{"spec": shown, "parseErrors": unread}, nil
}
