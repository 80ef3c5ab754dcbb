// in pkg/scheduler/plugins/scarceresourceavoidance
package scarceresourceavoidance

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/apis/config"
)

type scarceQuestion struct {
	Args struct {
		Resources []v1.ResourceName `json:"resources"`
	} `json:"args"`
	Allocatable v1.ResourceList `json:"allocatable"`
	PodRequests v1.ResourceList `json:"podRequests"`
}

func init() { answering.Area("scarce-avoidance", answering.Of(scored)) }

func scored(asked scarceQuestion) (any, error) {
	plugin := &Plugin{args: &config.ScarceResourceAvoidanceArgs{Resources: asked.Args.Resources}}
	pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{
		{Resources: v1.ResourceRequirements{Requests: asked.PodRequests}}}}}
	info := framework.NewNodeInfo()
	info.SetNode(&v1.Node{Status: v1.NodeStatus{Allocatable: asked.Allocatable}})
	state := framework.NewCycleState()
	if status := plugin.PreScore(context.TODO(), state, pod, nil); !status.IsSuccess() {
		return nil, status.AsError()
	}
	score, status := plugin.Score(context.TODO(), state, pod, info)
	return map[string]int64{"score": score}, status.AsError()
}
