// in pkg/webhook/node/plugins/sloconfig
package sloconfig

import (
	"context"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/koordinator-sh/koordinator/pkg/answering"
	configs "github.com/koordinator-sh/koordinator/pkg/webhook/cm/plugins/sloconfig"
)

// oneConfigMap is a cluster with at most one object.
type oneConfigMap struct {
	ctrlclient.Client
	data *map[string]string
}

func (c oneConfigMap) Get(_ context.Context, key ctrlclient.ObjectKey, found ctrlclient.Object, _ ...ctrlclient.GetOption) error {
	if c.data == nil {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	configs.AnsweringMap(c.data).DeepCopyInto(found.(*corev1.ConfigMap))
	return nil
}

func init() { answering.Area("slo-config-validation", answering.Of(configAnswer)) }

func configAnswer(asked configs.ConfigQuestion) (any, error) {
	if asked.Op != "node" {
		return configs.AnsweringConfig(asked)
	}
	node, old := &corev1.Node{}, &corev1.Node{}
	node.Labels, old.Labels = asked.NewLabels, asked.OldLabels
	request := ctrladmission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Operation: asked.Operation}}
	plugin := NewPlugin(nil, oneConfigMap{data: asked.Data})
	return configs.AnsweringVerdict(plugin.Validate(context.TODO(), request, node, old)), nil
}
