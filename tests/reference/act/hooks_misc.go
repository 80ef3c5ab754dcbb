// in pkg/koordlet/runtimehooks/hooks/tc
package tc

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	ext "github.com/koordinator-sh/koordinator/apis/extension"
	slov1alpha1 "github.com/koordinator-sh/koordinator/apis/slo/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/runtimehooks/hooks/coresched"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/runtimehooks/hooks/gpu"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/runtimehooks/protocol"
)

type hookQuestion struct {
	Op                string
	Strategy          *slov1alpha1.ResourceQOSStrategy
	Labels            map[string]string
	KubeQOS           corev1.PodQOSClass
	PodUID            string
	DeviceAllocated   *string
	IsolationProvider *string
	Total             uint64
	Value             *intstr.IntOrString
	Major, Minor      int
}

func init() { answering.Area("runtime-hooks-misc", answering.Of(hookAnswer)) }

func hookAnswer(asked hookQuestion) (any, error) {
	switch asked.Op {
	case "core_group":
		return coresched.GroupOf(asked.Strategy, asked.Labels, asked.KubeQOS, asked.PodUID)
	case "cpu_idle":
		return coresched.IdleOf(asked.Strategy)
	case "gpu_env":
		context := &protocol.ContainerContext{}
		if asked.DeviceAllocated != nil {
			context.Request.PodAnnotations = map[string]string{ext.AnnotationDeviceAllocated: *asked.DeviceAllocated}
		}
		if asked.IsolationProvider != nil {
			context.Request.PodLabels = map[string]string{ext.LabelGPUIsolationProvider: *asked.IsolationProvider}
		}
		if err := gpu.Object().InjectContainerGPUEnv(context); err != nil {
			return map[string]any{"error": true}, nil
		}
		envs := map[string]string{}
		for name, value := range context.Response.AddContainerEnvs {
			envs[name] = value
		}
		return map[string]any{"error": false, "envs": envs}, nil
	case "net_amount":
		return map[string]any{"bits": getBandwidthVal(asked.Total, asked.Value)}, nil
	case "class_id":
		return map[string]any{"id": convertToHexClassId(asked.Major, asked.Minor)}, nil
	}
	return nil, fmt.Errorf("nothing answers %s", asked.Op)
}
