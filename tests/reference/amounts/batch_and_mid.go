// in pkg/slo-controller/noderesource/plugins/batchresource
package batchresource

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	topologyv1alpha1 "github.com/k8stopologyawareschedwg/noderesourcetopology-api/pkg/apis/topology/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/koordinator-sh/koordinator/apis/configuration"
	"github.com/koordinator-sh/koordinator/apis/extension"
	slov1alpha1 "github.com/koordinator-sh/koordinator/apis/slo/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/slo-controller/noderesource/framework"
	"github.com/koordinator-sh/koordinator/pkg/slo-controller/noderesource/plugins/midresource"
	resutil "github.com/koordinator-sh/koordinator/pkg/slo-controller/noderesource/plugins/util"
	"github.com/koordinator-sh/koordinator/pkg/util/sloconfig"
)

type amountsQuestion struct {
	Op       string                            `json:"op"`
	Strategy *configuration.ColocationStrategy `json:"strategy"`
	Config   *configuration.ColocationCfg      `json:"colocationConfig"`
	Node     corev1.Node                       `json:"node"`
	Pods     []corev1.Pod                      `json:"pods"`
	Status   slov1alpha1.NodeMetricStatus      `json:"nodeMetricStatus"`
	AgeS     *float64                          `json:"nodeMetricAgeSeconds"`
	NRTZones topologyv1alpha1.ZoneList         `json:"nrtZones"`

	Old       *resource.Quantity             `json:"old"`
	New       *resource.Quantity             `json:"new"`
	Threshold float64                        `json:"resourceDiffThreshold"`
	Zones     topologyv1alpha1.ZoneList      `json:"zones"`
	Results   map[string]corev1.ResourceList `json:"zoneResources"`
	Ratio     float64                        `json:"ratio"`
}

type amountsAnswer map[string]any

func init() {
	answering.Area("noderesource-batch", batchAnswer)
	answering.Area("noderesource-mid", answering.Of(midAnswer))
	answering.Area("yarn-batch-subtract", answering.Of(subtractAnswer))
}

func batchAnswer(input json.RawMessage) (any, error) {
	switch opOf(input) {
	case "prepare":
		return answering.Of(prepareAnswer)(input)
	case "divide":
		return answering.Of(divideAnswer)(input)
	}
	return answering.Of(amountsAnswerOf)(input)
}

func amountsAnswerOf(asked amountsQuestion) (any, error) {
	switch asked.Op {
	case "calculate":
		return asked.batch(asked.Strategy)
	case "needSync":
		strategy := &configuration.ColocationStrategy{ResourceDiffThreshold: &asked.Threshold}
		needed, _ := (&Plugin{}).NeedSync(strategy, nodeWith(asked.Old), nodeWith(asked.New))
		return amountsAnswer{"needSync": needed}, nil
	}
	result := framework.NewNodeResource()
	result.ZoneResources = asked.Results
	if asked.Ratio != 0 {
		result.Annotations[extension.AnnotationCPUNormalizationRatio] = strconv.FormatFloat(asked.Ratio, 'f', -1, 64)
	}
	changed := resutil.UpdateNRTZoneListIfNeeded(&corev1.Node{}, asked.Zones, result, asked.Threshold)
	zones := map[string][][]any{}
	for _, zone := range asked.Zones {
		rows := [][]any{}
		for _, each := range zone.Resources {
			rows = append(rows, []any{each.Name, each.Capacity.Value(), each.Allocatable.Value(), each.Available.Value()})
		}
		zones[zone.Name] = rows
	}
	return amountsAnswer{"changed": changed, "zones": zones}, nil
}

func nodeWith(amount *resource.Quantity) *corev1.Node {
	node := &corev1.Node{}
	if amount != nil {
		node.Status.Allocatable = corev1.ResourceList{extension.BatchCPU: *amount}
	}
	return node
}

// oneTopology is a cluster with at most one object.
type oneTopology struct {
	ctrlclient.Client
	zones topologyv1alpha1.ZoneList
}

func (c oneTopology) Get(_ context.Context, key ctrlclient.ObjectKey, found ctrlclient.Object, _ ...ctrlclient.GetOption) error {
	if c.zones == nil {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	found.(*topologyv1alpha1.NodeResourceTopology).Zones = c.zones
	return nil
}

func (asked *amountsQuestion) metrics() *framework.ResourceMetrics {
	if asked.AgeS != nil {
		// Somewhat younger, so that an age at the limit is not above it when the question is looked at.
		age := time.Duration(*asked.AgeS*float64(time.Second)) - 100*time.Millisecond
		asked.Status.UpdateTime = &metav1.Time{Time: time.Now().Add(-age)}
	}
	return &framework.ResourceMetrics{NodeMetric: &slov1alpha1.NodeMetric{Status: asked.Status}}
}

func (asked *amountsQuestion) batch(strategy *configuration.ColocationStrategy) (any, error) {
	client = oneTopology{zones: asked.NRTZones}
	items, err := (&Plugin{}).Calculate(strategy, &asked.Node, &corev1.PodList{Items: asked.Pods}, asked.metrics())
	if err != nil {
		return nil, err
	}
	found := framework.NewNodeResource(items...)
	answer := tier(found, "batchCPU", extension.BatchCPU, "batchMemory", extension.BatchMemory)
	if len(found.ZoneResources) > 0 {
		zones := amountsAnswer{}
		for name, amounts := range found.ZoneResources {
			cpu, memory := amounts[extension.BatchCPU], amounts[extension.BatchMemory]
			zones[name] = amountsAnswer{"batchCPU": cpu.Value(), "batchMemory": memory.Value()}
		}
		answer["zones"] = zones
	}
	return answer, nil
}

func tier(found *framework.NodeResource, cpuName string, cpu corev1.ResourceName, memoryName string, memory corev1.ResourceName) amountsAnswer {
	if found.Resets[cpu] && found.Resets[memory] {
		return amountsAnswer{"reset": true}
	}
	return amountsAnswer{cpuName: found.Get(cpu).Value(), memoryName: found.Get(memory).Value()}
}

func isOn(enable *bool) bool { return enable != nil && *enable }

func midAnswer(asked amountsQuestion) (any, error) {
	answer := amountsAnswer{}
	strategy := asked.Strategy
	if asked.Op == "calculateWithConfig" {
		strategy = sloconfig.GetNodeColocationStrategy(asked.Config, &asked.Node)
		if !isOn(asked.Config.Enable) || !isOn(strategy.Enable) {
			return nil, errors.New("nothing is calculated while co-location is off")
		}
		batch, err := asked.batch(strategy)
		if err != nil {
			return nil, err
		}
		answer = batch.(amountsAnswer)
	}
	items, err := (&midresource.Plugin{}).Calculate(strategy, &asked.Node, &corev1.PodList{Items: asked.Pods}, asked.metrics())
	if err != nil {
		return nil, err
	}
	found := framework.NewNodeResource(items...)
	for name, value := range tier(found, "midCPU", extension.MidCPU, "midMemory", extension.MidMemory) {
		answer[name] = value
	}
	return answer, nil
}
