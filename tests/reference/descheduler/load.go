// in pkg/descheduler/framework/plugins/loadaware
package loadaware

import (
	"encoding/json"
	"sort"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/cache"

	slov1alpha1 "github.com/koordinator-sh/koordinator/apis/slo/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	slolisters "github.com/koordinator-sh/koordinator/pkg/client/listers/slo/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/apis/config"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/test"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/utils/sorter"
)

type metricsOfNodes map[string]*slov1alpha1.NodeMetric

type classifyQuestion struct {
	Pool       config.LowNodeLoadNodePool `json:"pool"`
	Nodes      []*corev1.Node             `json:"nodes"`
	Pods       []*corev1.Pod              `json:"pods"`
	Metrics    metricsOfNodes             `json:"node_metrics"`
	Now        float64                    `json:"now"`
	Expiration int64                      `json:"node_metric_expiration_seconds"`
}

func init() {
	answering.Area("descheduler-lownodeload-classify", test.Stable(test.Often, test.Of(classified)))
	answering.Area("descheduler-lownodeload-reason", answering.Of(reasonOf))
	answering.Area("descheduler-usage-score", answering.Of(scored))
}

// lister shows the metrics as old as they are on the clock of the question.
func (m metricsOfNodes) lister(now float64) slolisters.NodeMetricLister {
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	for name, metric := range m {
		copied := metric.DeepCopy()
		copied.Name = name
		if at := copied.Status.UpdateTime; at != nil {
			at.Time = time.Now().Add(at.Sub(test.At(now)))
		}
		indexer.Add(copied)
	}
	return slolisters.NewNodeMetricLister(indexer)
}

type classes struct {
	low, high, prodLow, prodHigh, bothLow []NodeInfo
	usages                                map[string]*NodeUsage
	limits                                map[string]NodeThresholds
}

func classesOf(pool *config.LowNodeLoadNodePool, nodes []*corev1.Node, pods []*corev1.Pod, metrics slolisters.NodeMetricLister, expiration *int64) (found classes) {
	low, high, prodLow, prodHigh := newThresholds(pool.UseDeviationThresholds, pool.LowThresholds, pool.HighThresholds, pool.ProdLowThresholds, pool.ProdHighThresholds)
	names := getResourceNames(low)
	found.usages = getNodeUsage(nodes, names, metrics, test.PodsOn(pods), expiration)
	found.limits = getNodeThresholds(found.usages, low, high, prodLow, prodHigh, names, pool.UseDeviationThresholds)
	found.low, found.high, found.prodLow, found.prodHigh, found.bothLow = classifyNodes(found.usages, found.limits,
		lowThresholdFilter, highThresholdFilter, prodLowThresholdFilter, prodHighThresholdFilter)
	return found
}

func (c classes) names() map[string][]string {
	return map[string][]string{
		"low": namesOf(c.low), "high": namesOf(c.high), "prodLow": namesOf(c.prodLow),
		"prodHigh": namesOf(c.prodHigh), "bothLow": namesOf(c.bothLow),
	}
}

func namesOf(nodes []NodeInfo) []string {
	found := []string{}
	for _, each := range nodes {
		found = append(found, each.node.Name)
	}
	sort.Strings(found)
	return found
}

func classified(asked classifyQuestion) (any, error) {
	found := classesOf(&asked.Pool, asked.Nodes, asked.Pods, asked.Metrics.lister(asked.Now), &asked.Expiration)
	names := found.names()
	known := map[string]bool{}
	for _, members := range names {
		for _, name := range members {
			known[name] = true
		}
	}
	names["normal"], names["skipped"] = []string{}, []string{}
	detail := map[string]any{}
	for _, node := range asked.Nodes {
		usage := found.usages[node.Name]
		if usage == nil {
			names["skipped"] = append(names["skipped"], node.Name)
			continue
		}
		if !known[node.Name] {
			names["normal"] = append(names["normal"], node.Name)
		}
		limits := found.limits[node.Name]
		detail[node.Name] = map[string]any{
			"usage": amounts(usage.usage), "prod_usage": amounts(usage.prodUsage),
			"low": amounts(limits.lowResourceThreshold), "high": amounts(limits.highResourceThreshold),
			"prod_low": amounts(limits.prodLowResourceThreshold), "prod_high": amounts(limits.prodHighResourceThreshold),
		}
	}
	sort.Strings(names["normal"])
	sort.Strings(names["skipped"])
	return map[string]any{"classes": names, "detail": detail}, nil
}

func amounts(given map[corev1.ResourceName]*resource.Quantity) map[string]int64 {
	found := map[string]int64{}
	for name, quantity := range given {
		found[string(name)] = quantity.Value()
		if name == corev1.ResourceCPU {
			found[string(name)] = quantity.MilliValue()
		}
	}
	return found
}

func quantities(given corev1.ResourceList) map[corev1.ResourceName]*resource.Quantity {
	found := map[corev1.ResourceName]*resource.Quantity{}
	for name, quantity := range given {
		copied := quantity.DeepCopy()
		found[name] = &copied
	}
	return found
}

func reasonOf(asked struct {
	Allocatable corev1.ResourceList `json:"allocatable"`
	High        ResourceThresholds  `json:"high_thresholds"`
	ProdHigh    ResourceThresholds  `json:"prod_high_thresholds"`
	Usage       corev1.ResourceList `json:"usage"`
	ProdUsage   corev1.ResourceList `json:"prod_usage"`
	Prod        bool                `json:"prod"`
}) (any, error) {
	info := NodeInfo{NodeUsage: &NodeUsage{
		node:  &corev1.Node{Status: corev1.NodeStatus{Allocatable: asked.Allocatable}},
		usage: quantities(asked.Usage), prodUsage: quantities(asked.ProdUsage),
	}}
	info.thresholds.highResourceThreshold = limitsOf(asked.Allocatable, asked.High)
	info.thresholds.prodHighResourceThreshold = limitsOf(asked.Allocatable, asked.ProdHigh)
	return map[string]string{"reason": overUtilizedEvictionReason(asked.High, asked.ProdHigh)(info, asked.Prod)}, nil
}

func limitsOf(allocatable corev1.ResourceList, percent ResourceThresholds) map[corev1.ResourceName]*resource.Quantity {
	found := map[corev1.ResourceName]*resource.Quantity{}
	for name, each := range percent {
		found[name] = resourceThreshold(allocatable, name, each)
	}
	return found
}

func scored(asked struct {
	Kind     string                        `json:"kind"`
	Usage    corev1.ResourceList           `json:"usage"`
	Capacity corev1.ResourceList           `json:"capacity"`
	Excess   corev1.ResourceList           `json:"excess"`
	Weights  map[corev1.ResourceName]int64 `json:"weights"`
	Nodes    []struct {
		Name        string              `json:"name"`
		Allocatable corev1.ResourceList `json:"allocatable"`
		Usage       corev1.ResourceList `json:"usage"`
	} `json:"nodes"`
}) (any, error) {
	switch asked.Kind {
	case "node":
		return map[string]int64{"score": sorter.ResourceUsageScorer(asked.Weights)(asked.Usage, asked.Capacity)}, nil
	case "pod":
		return map[string]float64{"score": sorter.ResourceUsageScorerPod(asked.Weights)(asked.Usage, asked.Excess)}, nil
	}
	var nodes []NodeInfo
	for _, each := range asked.Nodes {
		node := &corev1.Node{Status: corev1.NodeStatus{Allocatable: each.Allocatable}}
		node.Name = each.Name
		nodes = append(nodes, NodeInfo{NodeUsage: &NodeUsage{node: node, usage: quantities(each.Usage)}})
	}
	sort.SliceStable(nodes, func(i, j int) bool { return nodes[i].node.Name < nodes[j].node.Name })
	sortNodesByUsage(nodes, asked.Weights, false, false)
	order := []string{}
	for _, each := range nodes {
		order = append(order, each.node.Name)
	}
	return map[string]any{"hottest_first": order}, nil
}

// argsOf completes arguments as those of a configuration file are.
func argsOf(given json.RawMessage) (*config.LowNodeLoadArgs, error) {
	return test.ArgsOf[config.LowNodeLoadArgs](LowNodeLoadName, given)
}
