// in pkg/slo-controller/noderesource/plugins/gpudeviceresource
package gpudeviceresource

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/koordinator-sh/koordinator/apis/configuration"
	schedulingv1alpha1 "github.com/koordinator-sh/koordinator/apis/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/features"
	"github.com/koordinator-sh/koordinator/pkg/slo-controller/noderesource/framework"
	rdma "github.com/koordinator-sh/koordinator/pkg/slo-controller/noderesource/plugins/rdmadevicereource"
	utilfeature "github.com/koordinator-sh/koordinator/pkg/util/feature"
)

type deviceQuestion struct {
	Op         string                     `json:"op"`
	Device     *schedulingv1alpha1.Device `json:"device"`
	SharedGate bool                       `json:"sharedGate"`
}

type devicePlugin interface {
	framework.SetupPlugin
	Calculate(*configuration.ColocationStrategy, *corev1.Node, *corev1.PodList, *framework.ResourceMetrics) ([]framework.ResourceItem, error)
	Prepare(*configuration.ColocationStrategy, *corev1.Node, *framework.NodeResource) error
}

// oneDevice is a cluster with at most one object.
type oneDevice struct {
	ctrlclient.Client
	device *schedulingv1alpha1.Device
}

func (c oneDevice) Get(_ context.Context, key ctrlclient.ObjectKey, found ctrlclient.Object, _ ...ctrlclient.GetOption) error {
	if c.device == nil {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	c.device.DeepCopyInto(found.(*schedulingv1alpha1.Device))
	return nil
}

func init() { answering.Area("noderesource-device", answering.Of(deviceAnswer)) }

func deviceAnswer(asked deviceQuestion) (any, error) {
	var plugin devicePlugin = &Plugin{}
	known := ResourceNames
	if asked.Op == "rdma" {
		plugin, known = &rdma.Plugin{}, rdma.ResourceNames
	}
	gate := map[string]bool{string(features.EnableSyncGPUSharedResource): asked.SharedGate}
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(gate); err != nil {
		return nil, err
	}
	if err := plugin.Setup(&framework.Option{Client: oneDevice{device: asked.Device}, Builder: &builder.Builder{}}); err != nil {
		return nil, err
	}
	node := &corev1.Node{}
	node.Labels = map[string]string{}
	node.Status.Capacity, node.Status.Allocatable = corev1.ResourceList{}, corev1.ResourceList{}
	items, err := plugin.Calculate(nil, node, nil, nil)
	if err != nil {
		return nil, err
	}
	result := framework.NewNodeResource(items...)
	resets := 0
	for _, name := range known {
		if result.Resets[name] {
			resets++
		}
	}
	if resets == len(known) {
		return map[string]any{"reset": true}, nil
	}
	if err := plugin.Prepare(nil, node, result); err != nil {
		return nil, err
	}
	amounts := map[string]string{}
	for name, amount := range node.Status.Allocatable {
		amounts[string(name)] = amount.String()
	}
	answer := map[string]any{"resources": amounts}
	if asked.Op == "gpu" {
		answer["labels"] = node.Labels
	}
	return answer, nil
}
