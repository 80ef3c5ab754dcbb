// in pkg/slo-controller/noderesource/plugins/resourceamplification
package resourceamplification

import (
	"context"
	"encoding/json"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/koordinator-sh/koordinator/apis/configuration"
	"github.com/koordinator-sh/koordinator/apis/extension"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/slo-controller/noderesource/framework"
	webhook "github.com/koordinator-sh/koordinator/pkg/webhook/node/plugins/resourceamplification"
)

type nodeOfQuestion struct {
	Annotations map[string]string   `json:"annotations"`
	Allocatable corev1.ResourceList `json:"allocatable"`
}

func (given *nodeOfQuestion) node() *corev1.Node {
	if given == nil {
		return nil
	}
	node := &corev1.Node{}
	node.Annotations, node.Status.Allocatable = given.Annotations, given.Allocatable
	return node
}

type amplificationQuestion struct {
	Op              string                                  `json:"op"`
	Config          *configuration.ResourceAmplificationCfg `json:"config"`
	NodeLabels      map[string]string                       `json:"nodeLabels"`
	NodeAnnotations map[string]string                       `json:"nodeAnnotations"`
	Operation       admissionv1.Operation                   `json:"operation"`
	OldNode         *nodeOfQuestion                         `json:"oldNode"`
	Node            *nodeOfQuestion                         `json:"node"`
	Old             *string                                 `json:"old"`
	New             *string                                 `json:"new"`
	Value           int64                                   `json:"value"`
	Ratio           extension.Ratio                         `json:"ratio"`

	Amount    int64                                     `json:"amount"`
	Ratios    map[corev1.ResourceName]extension.Ratio   `json:"ratios"`
	Names     []corev1.ResourceName                     `json:"names"`
	Resources map[corev1.ResourceName]resource.Quantity `json:"resources"`
}

func init() {
	answering.Area("amplification", answering.Of(amplificationAnswer))
	answering.Area("api-amplification", answering.Of(amplifiedAnswer))
}

func amplificationAnswer(asked amplificationQuestion) (any, error) {
	switch asked.Op {
	case "calculate":
		return asked.calculated(), nil
	case "nodeStatusAdmission":
		return asked.admitted()
	case "needSyncMeta":
		needed, _ := (&Plugin{}).NeedSyncMeta(nil, amplifiedNode(asked.Old), amplifiedNode(asked.New))
		return map[string]any{"needSync": needed}, nil
	}
	return map[string]any{"value": extension.Amplify(asked.Value, asked.Ratio)}, nil
}

func amplifiedNode(text *string) *corev1.Node {
	node := &corev1.Node{}
	if text != nil {
		node.Annotations = map[string]string{extension.AnnotationNodeResourceAmplificationRatio: *text}
	}
	return node
}

func (asked *amplificationQuestion) calculated() any {
	cfgHandler = newConfigHandler(nil, asked.Config, record.NewFakeRecorder(10))
	cfgHandler.cache.available = true
	node := &corev1.Node{}
	node.Labels, node.Annotations = asked.NodeLabels, asked.NodeAnnotations
	items, err := (&Plugin{}).Calculate(nil, node, nil, nil)
	if err != nil {
		return map[string]any{"error": true}
	}
	text, has := framework.NewNodeResource(items...).Annotations[extension.AnnotationNodeResourceAmplificationRatio]
	if !has {
		return map[string]any{"annotation": nil}
	}
	return map[string]any{"annotation": text}
}

func (asked *amplificationQuestion) admitted() (any, error) {
	request := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Operation: asked.Operation}}
	node := asked.Node.node()
	if err := webhook.NewPlugin().Admit(context.TODO(), request, node, asked.OldNode.node()); err != nil {
		return map[string]any{"error": true}, nil
	}
	answer := map[string]any{"allocatableMilli": millis(node.Status.Allocatable), "rawAllocatableMilli": nil}
	if text, has := node.Annotations[extension.AnnotationNodeRawAllocatable]; has {
		var raw corev1.ResourceList
		if err := json.Unmarshal([]byte(text), &raw); err != nil {
			return nil, err
		}
		answer["rawAllocatableMilli"] = millis(raw)
	}
	return answer, nil
}

func millis(amounts corev1.ResourceList) map[string]int64 {
	values := map[string]int64{}
	for name, amount := range amounts {
		values[string(name)] = amount.MilliValue()
	}
	return values
}

func amplifiedAnswer(asked amplificationQuestion) (any, error) {
	if asked.Op == "scalar" {
		return map[string]any{"amount": extension.Amplify(asked.Amount, asked.Ratio)}, nil
	}
	extension.AmplifyResourceList(asked.Resources, asked.Ratios, asked.Names...)
	return map[string]any{"resources": asked.Resources}, nil
}
