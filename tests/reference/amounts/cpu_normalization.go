// in pkg/slo-controller/noderesource/plugins/cpunormalization
package cpunormalization

import (
	"context"
	"encoding/json"
	"errors"

	topologyv1alpha1 "github.com/k8stopologyawareschedwg/noderesourcetopology-api/pkg/apis/topology/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/koordinator-sh/koordinator/apis/configuration"
	"github.com/koordinator-sh/koordinator/apis/extension"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/slo-controller/noderesource/framework"
)

type normalizationQuestion struct {
	Op         string                                  `json:"op"`
	Config     *configuration.CPUNormalizationCfg      `json:"config"`
	NodeLabels map[string]string                       `json:"nodeLabels"`
	Reported   *map[string]string                      `json:"topologyAnnotations"`
	BasicInfo  extension.CPUBasicInfo                  `json:"basicInfo"`
	Strategy   *configuration.CPUNormalizationStrategy `json:"strategy"`
	Data       *map[string]string                      `json:"configMapData"`
}

// oneReport is a cluster with at most one object.
type oneReport struct {
	ctrlclient.Client
	annotations *map[string]string
}

func (c oneReport) Get(_ context.Context, key ctrlclient.ObjectKey, found ctrlclient.Object, _ ...ctrlclient.GetOption) error {
	if c.annotations == nil {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	found.(*topologyv1alpha1.NodeResourceTopology).Annotations = *c.annotations
	return nil
}

func init() { answering.Area("cpunormalization", normalizationAnswer) }

func normalizationAnswer(input json.RawMessage) (any, error) {
	var asked struct {
		Op string `json:"op"`
	}
	if err := json.Unmarshal(input, &asked); err != nil {
		return nil, err
	}
	switch asked.Op {
	case "needSyncMeta":
		return answering.Of(normalizationSync)(input)
	case "syncConfig":
		return answering.Of(normalizationConfig)(input)
	}
	return answering.Of(ratioAnswer)(input)
}

func ratioAnswer(asked normalizationQuestion) (any, error) {
	var ratio any
	var err error
	switch asked.Op {
	case "calculate":
		ratio, err = asked.calculated()
	case "modelRatio":
		ratio, err = getCPUNormalizationRatioFromModel(&asked.BasicInfo, asked.Strategy)
	case "strategyRatio":
		ratio, err = getCPUNormalizationRatio(&asked.BasicInfo, asked.Strategy)
	default:
		return nil, errors.New("no such question")
	}
	if err != nil {
		return map[string]any{"error": true}, nil
	}
	return map[string]any{"ratio": ratio}, nil
}

func (asked *normalizationQuestion) calculated() (any, error) {
	cfgHandler = newConfigHandler(nil, asked.Config, record.NewFakeRecorder(10))
	cfgHandler.cache.available = true
	client = oneReport{annotations: asked.Reported}
	node := &corev1.Node{}
	node.Labels = asked.NodeLabels
	items, err := (&Plugin{}).Calculate(nil, node, nil, nil)
	if err != nil {
		return nil, err
	}
	return framework.NewNodeResource(items...).Annotations[extension.AnnotationCPUNormalizationRatio], nil
}

func normalizationSync(asked struct {
	Old *string `json:"old"`
	New *string `json:"new"`
}) (any, error) {
	needed, _ := (&Plugin{}).NeedSyncMeta(nil, ratioNode(asked.Old), ratioNode(asked.New))
	return map[string]any{"needSync": needed}, nil
}

func ratioNode(text *string) *corev1.Node {
	node := &corev1.Node{}
	if text != nil {
		node.Annotations = map[string]string{extension.AnnotationCPUNormalizationRatio: *text}
	}
	return node
}

func normalizationConfig(asked struct {
	Old  *configuration.CPUNormalizationCfg `json:"old"`
	Data *map[string]string                 `json:"configMapData"`
}) (any, error) {
	told := record.NewFakeRecorder(10)
	handler := newConfigHandler(nil, asked.Old, told)
	var configMap *corev1.ConfigMap
	if asked.Data != nil {
		configMap = &corev1.ConfigMap{Data: *asked.Data}
	}
	handler.syncCacheIfCfgChanged(configMap)
	return map[string]any{"config": handler.GetCfgCopy(), "error": len(told.Events) > 0}, nil
}
