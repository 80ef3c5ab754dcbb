// in pkg/descheduler/framework/plugins
package plugins

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	slov1alpha1 "github.com/koordinator-sh/koordinator/apis/slo/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/evictions"
	nodeutil "github.com/koordinator-sh/koordinator/pkg/descheduler/node"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/test"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/utils/sorter"
)

func init() {
	answering.Area("descheduler-node-fit", test.Of(fitting))
	answering.Area("descheduler-evictable", test.Of(evictable))
	answering.Area("descheduler-eviction-limiter", test.Of(limited))
	answering.Area("descheduler-pod-sorter", test.Stable(2, test.Of(sorted)))
}

type podQuestion struct {
	Pod    *corev1.Pod    `json:"pod"`
	Nodes  []*corev1.Node `json:"nodes"`
	Others []*corev1.Pod  `json:"other_pods"`
}

func fitting(asked podQuestion) (any, error) {
	fits := map[string]bool{}
	for _, node := range asked.Nodes {
		fits[node.Name] = len(nodeutil.NodeFit(test.PodsOn(asked.Others), asked.Pod, node)) == 0
	}
	any := nodeutil.PodFitsAnyOtherNode(test.PodsOn(asked.Others), asked.Pod, asked.Nodes)
	return map[string]interface{}{"fits": fits, "fits_any_other_node": any}, nil
}

func evictable(asked struct {
	podQuestion
	Options struct {
		EvictAllBarePods        bool                  `json:"evictAllBarePods"`
		EvictFailedBarePods     bool                  `json:"evictFailedBarePods"`
		EvictLocalStoragePods   bool                  `json:"evictLocalStoragePods"`
		EvictSystemCriticalPods bool                  `json:"evictSystemCriticalPods"`
		IgnorePvcPods           bool                  `json:"ignorePvcPods"`
		PriorityThreshold       *int32                `json:"priorityThreshold"`
		NodeFit                 bool                  `json:"nodeFit"`
		LabelSelector           *metav1.LabelSelector `json:"labelSelector"`
	} `json:"options"`
}) (any, error) {
	options := asked.Options
	filter, err := evictions.NewEvictorFilter(func() ([]*corev1.Node, error) { return asked.Nodes, nil }, test.PodsOn(asked.Others),
		options.EvictLocalStoragePods, options.EvictSystemCriticalPods, options.IgnorePvcPods, options.EvictFailedBarePods, options.EvictAllBarePods,
		evictions.WithPriorityThreshold(options.PriorityThreshold), evictions.WithNodeFit(options.NodeFit), evictions.WithLabelSelector(options.LabelSelector))
	if err != nil {
		return nil, err
	}
	return map[string]bool{"evictable": filter.Filter(asked.Pod)}, nil
}

func limited(asked struct {
	Limits struct {
		PerNode      *uint `json:"perNode"`
		PerNamespace *uint `json:"perNamespace"`
		Total        *uint `json:"total"`
	} `json:"limits"`
	Evictions []struct {
		Namespace string `json:"namespace"`
		Node      string `json:"node"`
	} `json:"evictions"`
	Reset *int `json:"reset_before_index"`
}) (any, error) {
	limiter := evictions.NewEvictionLimiter(asked.Limits.PerNode, asked.Limits.PerNamespace, asked.Limits.Total)
	allowed, nodes, namespaces := []bool{}, map[string]uint{}, map[string]uint{}
	for index, each := range asked.Evictions {
		if asked.Reset != nil && *asked.Reset == index {
			limiter.Reset()
		}
		pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: each.Node}}
		pod.Namespace = each.Namespace
		ok := limiter.AllowEvict(pod)
		if ok {
			limiter.Done(pod)
		}
		allowed = append(allowed, ok)
	}
	for _, each := range asked.Evictions {
		if count := limiter.NodeEvicted(each.Node); count > 0 {
			nodes[each.Node] = count
		}
		if count := limiter.NamespaceEvicted(each.Namespace); count > 0 {
			namespaces[each.Namespace] = count
		}
	}
	return map[string]any{"allowed": allowed, "node_counts": nodes, "namespace_counts": namespaces, "total": limiter.TotalEvicted()}, nil
}

func sorted(asked struct {
	Pods        []*corev1.Pod                  `json:"pods"`
	UseUsageKey bool                           `json:"use_usage_key"`
	Usage       map[string]corev1.ResourceList `json:"pod_usage"`
	Excess      corev1.ResourceList            `json:"excess"`
	Weights     map[corev1.ResourceName]int64  `json:"weights"`
}) (any, error) {
	pods, metrics := test.InTurn(asked.Pods), map[types.NamespacedName]*slov1alpha1.ResourceMap{}
	for _, pod := range asked.Pods {
		if usage, ok := asked.Usage[test.Key(pod)]; ok {
			metrics[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}] = &slov1alpha1.ResourceMap{ResourceList: usage}
		}
	}
	if asked.UseUsageKey {
		sorter.SortPodsByUsage(asked.Excess, pods, metrics, nil, asked.Weights)
	} else {
		sorter.PodSorter().Sort(pods)
	}
	order := []string{}
	for _, pod := range pods {
		order = append(order, test.Key(pod))
	}
	return map[string]any{"order": order}, nil
}
