// in pkg/scheduler/plugins/nodenumaresource
package nodenumaresource

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwktype "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/koordinator-sh/koordinator/apis/extension"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	schedulingconfig "github.com/koordinator-sh/koordinator/pkg/scheduler/apis/config"
)

type policyQuestion struct {
	Kind          string      `json:"kind"`
	DefaultPolicy string      `json:"defaultCPUBindPolicy"`
	Pod           *corev1.Pod `json:"pod"`
	Node          struct {
		Labels map[string]string `json:"labels"`
	} `json:"node"`
	NodeLabels            map[string]string                  `json:"nodeLabels"`
	KubeletPolicy         *extension.KubeletCPUManagerPolicy `json:"kubeletPolicy"`
	Topology              *regular                           `json:"topology"`
	ExistingCPUSets       []string                           `json:"existingCPUSets"`
	NodeLabelPolicy       string                             `json:"nodeLabelPolicy"`
	KubeletTopologyPolicy extension.NUMATopologyPolicy       `json:"kubeletTopologyPolicy"`
	PodPolicy             string                             `json:"podPolicy"`
	PodRequiredPolicy     string                             `json:"podRequiredPolicy"`
	ResourceSpec          *extension.ResourceSpec            `json:"resourceSpec"`
}

func init() { answering.Area("numa-policy", answering.Of(decided)) }

func decided(asked policyQuestion) (any, error) {
	switch asked.Kind {
	case "prefilter":
		return asked.preFiltered()
	case "filter":
		return asked.filtered()
	case "nodeCPUBindPolicy":
		return map[string]any{"policy": extension.GetNodeCPUBindPolicy(asked.NodeLabels, asked.KubeletPolicy)}, nil
	case "mergeTopologyPolicy":
		labels := map[string]string{extension.LabelNUMATopologyPolicy: asked.NodeLabelPolicy}
		merged, err := mergeTopologyPolicy(getNUMATopologyPolicy(labels, asked.KubeletTopologyPolicy),
			extension.NUMATopologyPolicy(asked.PodPolicy))
		if err != nil {
			return map[string]string{"error": err.Error()}, nil
		}
		return map[string]any{"policy": merged}, nil
	case "resourceSpecWriteback":
		return asked.writtenBack()
	}
	return nil, fmt.Errorf("no kind %q", asked.Kind)
}

func answerOf(status *fwktype.Status) map[string]any {
	answer := map[string]any{"code": status.Code().String()}
	if message := status.Message(); message != "" {
		answer["reason"] = message
	}
	return answer
}

func (asked policyQuestion) preFiltered() (any, error) {
	plugin := pluginOf(TopologyOptions{}, &corev1.Node{}, "")
	plugin.pluginArgs.DefaultCPUBindPolicy = schedulingconfig.CPUBindPolicy(asked.DefaultPolicy)
	cycle := framework.NewCycleState()
	if _, status := plugin.PreFilter(context.TODO(), cycle, asked.Pod, nil); !status.IsSuccess() {
		return answerOf(status), nil
	}
	state, _ := getPreFilterState(cycle)
	return map[string]any{
		"code": "Success", "bind": state.requestCPUBind, "requiredPolicy": state.requiredCPUBindPolicy,
		"policy": state.preferredCPUBindPolicy, "exclusivePolicy": state.preferredCPUExclusivePolicy,
		"numCPUs": state.numCPUsNeeded,
	}, nil
}

func (asked policyQuestion) filtered() (any, error) {
	options := TopologyOptions{CPUTopology: asked.Topology.cpus(), Policy: asked.KubeletPolicy}
	options.NUMANodeResources = []NUMANodeResource{{}} // NUMA admission is another area
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: asked.Node.Labels}}
	plugin := pluginOf(options, node, string(schedulingconfig.NUMALeastAllocated))
	plugin.pluginArgs.DefaultCPUBindPolicy = schedulingconfig.CPUBindPolicy(asked.DefaultPolicy)
	var held []heldPod
	for _, cpus := range asked.ExistingCPUSets {
		held = append(held, heldPod{CPUSet: cpus})
	}
	if err := plugin.holds(held); err != nil {
		return nil, err
	}
	cycle := framework.NewCycleState()
	_, status := plugin.PreFilter(context.TODO(), cycle, asked.Pod, nil)
	if status.IsSuccess() || status.Code() == fwktype.Skip {
		status = plugin.Filter(context.TODO(), cycle, asked.Pod, plugin.info())
	}
	return answerOf(status), nil
}

func (asked policyQuestion) writtenBack() (any, error) {
	state := &preFilterState{
		requiredCPUBindPolicy:  schedulingconfig.CPUBindPolicy(asked.PodRequiredPolicy),
		preferredCPUBindPolicy: schedulingconfig.CPUBindPolicy(asked.PodPolicy),
	}
	pod := &corev1.Pod{}
	if err := extension.SetResourceSpec(pod, asked.ResourceSpec); err != nil {
		return nil, err
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: asked.NodeLabels}}
	if err := appendResourceSpecIfMissed(pod, state, node, &TopologyOptions{Policy: asked.KubeletPolicy}); err != nil {
		return nil, err
	}
	spec, err := extension.GetResourceSpec(pod.Annotations)
	return map[string]any{"resourceSpec": spec}, err
}
