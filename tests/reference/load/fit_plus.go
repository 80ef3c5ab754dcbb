// in pkg/scheduler/plugins/noderesourcefitplus
package noderesourcesfitplus

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/apis/config"
	v1 "github.com/koordinator-sh/koordinator/pkg/scheduler/apis/config/v1"
)

type fitQuestion struct {
	Args v1.NodeResourcesFitPlusArgs `json:"args"`
	Node struct {
		Allocatable corev1.ResourceList `json:"allocatable"`
		Requested   corev1.ResourceList `json:"requested"`
	} `json:"node"`
	Pod corev1.PodSpec `json:"pod"`
}

func init() { answering.Area("fitplus-score", answering.Of(scored)) }

func scored(asked fitQuestion) (any, error) {
	args := &config.NodeResourcesFitPlusArgs{}
	if err := v1.Convert_v1_NodeResourcesFitPlusArgs_To_config_NodeResourcesFitPlusArgs(&asked.Args, args, nil); err != nil {
		return nil, err
	}
	info := framework.NewNodeInfo()
	info.SetNode(&corev1.Node{Status: corev1.NodeStatus{Allocatable: asked.Node.Allocatable}})
	info.Requested = framework.NewResource(asked.Node.Requested)
	info.NonZeroRequested = info.Requested
	plugin, pod, state := &Plugin{args: args}, &corev1.Pod{Spec: asked.Pod}, framework.NewCycleState()
	if status := plugin.PreScore(context.TODO(), state, pod, nil); !status.IsSuccess() {
		return nil, status.AsError()
	}
	score, status := plugin.Score(context.TODO(), state, pod, info)
	return map[string]int64{"score": score}, status.AsError()
}
