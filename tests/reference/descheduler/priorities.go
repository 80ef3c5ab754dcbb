// in pkg/descheduler/framework/plugins/custompriority
package custompriority

import (
	"context"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/apis/config"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/test"
)

func init() { answering.Area("descheduler-custom-priority", test.Of(moved)) }

func moved(asked struct {
	Args    json.RawMessage `json:"args"`
	Nodes   []*corev1.Node  `json:"nodes"`
	Pods    []*corev1.Pod   `json:"pods"`
	Rejects []string        `json:"filter_rejects"`
	Failing []string        `json:"evictions_that_fail"`
}) (any, error) {
	args, err := test.ArgsOf[config.CustomPriorityArgs](PluginCustomPriorityName, asked.Args)
	if err != nil {
		return nil, err
	}
	var nodes []runtime.Object
	for _, node := range asked.Nodes {
		nodes = append(nodes, node.DeepCopy())
	}
	client, updates := test.ClientSet(nodes...), []string{}
	client.PrependReactor("update", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		node := action.(clienttesting.UpdateAction).GetObject().(*corev1.Node)
		if node.Spec.Unschedulable {
			updates = append(updates, "cordon:"+node.Name)
		} else {
			updates = append(updates, "uncordon:"+node.Name)
		}
		return false, nil, nil
	})
	failing := &test.Scene{Rejects: asked.Failing}
	scene := &test.Scene{Pods: asked.Pods, Rejects: asked.Rejects, Accepts: failing.Filter, Client: client, Evicted: []string{}}
	plugin, err := NewCustomPriority(context.Background(), args, scene)
	if err != nil {
		return nil, err
	}
	if status := plugin.(*CustomPriority).Balance(context.Background(), asked.Nodes); status != nil && status.Err != nil {
		return nil, status.Err
	}
	return map[string]any{"evicted": scene.Evicted, "node_updates": updates}, nil
}
