// in pkg/webhook/cm/plugins/sloconfig
package sloconfig

import (
	"context"
	"encoding/json"
	"errors"
	"regexp"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/koordinator-sh/koordinator/apis/configuration"
	"github.com/koordinator-sh/koordinator/pkg/util/sloconfig"
)

// ConfigQuestion is about the ConfigMap, or about a node that it is for.
type ConfigQuestion struct {
	Op           string                         `json:"op"`
	Key          string                         `json:"key"`
	Config       json.RawMessage                `json:"config"`
	SystemConfig json.RawMessage                `json:"systemConfig"`
	Profiles     []configuration.NodeCfgProfile `json:"profiles"`
	Operation    admissionv1.Operation          `json:"operation"`
	OldData      *map[string]string             `json:"oldData"`
	NewData      map[string]string              `json:"newData"`
	Nodes        []corev1.Node                  `json:"nodes"`
	NamesNeeded  bool                           `json:"nodeStrategyNameNeedCheck"`
	Data         *map[string]string             `json:"configMapData"`
	OldLabels    map[string]string              `json:"oldLabels"`
	NewLabels    map[string]string              `json:"newLabels"`
}

var reasonTold = regexp.MustCompile(`"reason":"(\w+)"`)

// AnsweringVerdict is how an error of a check is told.
func AnsweringVerdict(problem error) map[string]any {
	if problem == nil {
		return map[string]any{"allowed": true}
	}
	answer := map[string]any{"allowed": false}
	if found := reasonTold.FindStringSubmatch(problem.Error()); found != nil {
		answer["reason"] = found[1]
	}
	return answer
}

// AnsweringMap is the ConfigMap with some data.
func AnsweringMap(data *map[string]string) *corev1.ConfigMap {
	found := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: sloconfig.ConfigNameSpace, Name: sloconfig.SLOCtrlConfigMap}}
	if data != nil {
		found.Data = *data
	}
	return found
}

type someNodes struct {
	ctrlclient.Client
	nodes []corev1.Node
}

func (c someNodes) List(_ context.Context, list ctrlclient.ObjectList, _ ...ctrlclient.ListOption) error {
	list.(*corev1.NodeList).Items = c.nodes
	return nil
}

// AnsweringConfig answers what is asked about the ConfigMap.
func AnsweringConfig(asked ConfigQuestion) (any, error) {
	switch asked.Op {
	case "content":
		return asked.content()
	case "configmap":
		sloconfig.NodeStrategyNameNeedCheck = "false"
		if asked.NamesNeeded {
			sloconfig.NodeStrategyNameNeedCheck = "true"
		}
		request := ctrladmission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Operation: asked.Operation}}
		plugin := NewPlugin(nil, someNodes{nodes: asked.Nodes})
		return AnsweringVerdict(plugin.Validate(context.TODO(), request, AnsweringMap(&asked.NewData), AnsweringMap(asked.OldData))), nil
	case "overlap":
		checker, err := CreateNodeConfigProfileChecker("", func() []configuration.NodeCfgProfile { return asked.Profiles })
		if err != nil {
			return nil, err
		}
		return map[string]any{"overlap": checker.NodeSelectorOverlap() != nil}, nil
	}
	return nil, errors.New("no such question")
}

func (asked *ConfigQuestion) content() (any, error) {
	colocation, threshold, qos := &ColocationConfigChecker{}, &ResourceThresholdChecker{}, &ResourceQOSChecker{}
	system, burst := &SystemConfigChecker{}, &CPUBurstChecker{}
	var target any
	var checker ConfigChecker
	switch asked.Key {
	case configuration.ColocationConfigKey:
		target, checker = &colocation.cfg, colocation
	case configuration.ResourceThresholdConfigKey:
		target, checker = &threshold.cfg, threshold
	case configuration.ResourceQOSConfigKey:
		target, checker = &qos.cfg, qos
		qos.sysCfg = &configuration.SystemCfg{}
		if len(asked.SystemConfig) > 0 && json.Unmarshal(asked.SystemConfig, qos.sysCfg) != nil {
			return map[string]any{"valid": false}, nil
		}
	case configuration.SystemConfigKey:
		target, checker = &system.cfg, system
	case configuration.CPUBurstConfigKey:
		target, checker = &burst.cfg, burst
	default:
		return nil, errors.New("no checker of this key")
	}
	if json.Unmarshal(asked.Config, target) != nil {
		return map[string]any{"valid": false}, nil
	}
	return map[string]any{"valid": checker.ConfigParamValid() == nil}, nil
}
