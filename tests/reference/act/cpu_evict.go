// in pkg/koordlet/qosmanager/plugins/cpuevict
package cpuevict

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-base/featuregate"

	apiext "github.com/koordinator-sh/koordinator/apis/extension"
	slov1alpha1 "github.com/koordinator-sh/koordinator/apis/slo/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/features"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/metriccache"
	qosmanagerUtil "github.com/koordinator-sh/koordinator/pkg/koordlet/qosmanager/plugins/util"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/statesinformer"
)

type beSample struct {
	Count                     int
	Usage, Request, RealLimit float64
}

type cpuEvictQuestion struct {
	qosmanagerUtil.EvictRound
	Config           *slov1alpha1.ResourceThresholdStrategy
	UsedAvg          float64
	Avg, Current     *beSample
	BatchAllocatable *int64
	BE               *struct{ Avg, Current *beSample }
}

var all = []featuregate.Feature{features.BECPUEvict, features.CPUAllocatableEvict, features.CPUEvict}

func init() { answering.Area("cpu-evict", answering.Of(cpuEvictAnswer)) }

func cpuEvictAnswer(asked cpuEvictQuestion) (any, error) {
	metrics, node := metriccache.NewKnown(), &corev1.Node{}
	interval := time.Second
	if asked.CollectIntervalSeconds != nil {
		interval = time.Duration(*asked.CollectIntervalSeconds) * time.Second
	}
	for uid, used := range asked.PodUsed {
		metrics.PutOne(metriccache.PodCPUUsageMetric, metriccache.MetricPropertiesFunc.Pod(uid), used)
	}
	pods := statesinformer.MetasOf(asked.Pods)
	states := &statesinformer.Known{Node: node, Pods: pods}
	states.NodeSLO = &slov1alpha1.NodeSLO{Spec: slov1alpha1.NodeSLOSpec{ResourceUsedThresholdWithBE: asked.Config}}
	executor := asked.Executor()
	c := &cpuEvictor{metricCollectInterval: interval, statesInformer: states, metricCache: metrics, evictExecutor: executor}
	switch asked.Op {
	case "config":
		checks := map[string]func(*slov1alpha1.ResourceThresholdStrategy) error{
			"BECPUEvict": isSatisfactionConfigValid, "CPUEvict": isUsedThresholdConfigValid,
			"CPUAllocatableEvict": isAllocatableThresholdConfigValid,
		}
		return qosmanagerUtil.ValidityOf(checks[asked.Feature](asked.Config)), nil
	case "satisfaction":
		putBE(metrics, asked.Avg, asked.Current)
		if asked.BatchAllocatable != nil {
			amount := *resource.NewQuantity(*asked.BatchAllocatable, resource.DecimalSI)
			node.Status.Allocatable = corev1.ResourceList{apiext.BatchCPU: amount}
		}
		found, _ := c.calculateMilliReleaseByBESatisfaction(asked.Config, node, pods)
		return map[string]any{"releaseMilliCPU": found.Name(apiext.BatchCPU, resource.DecimalSI).Value()}, nil
	case "used_threshold":
		node.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(asked.Capacity)}
		metrics.PutOne(metriccache.NodeCPUUsageMetric, nil, asked.UsedAvg)
		found, _ := c.calculateMilliReleaseByUsedThresholdPercent(asked.Config, node, pods)
		return map[string]any{"release": found.Cpu().MilliValue()}, nil
	case "allocatable":
		node.Status.Allocatable = asked.Allocatable
		found, _ := c.calculateMilliReleaseByAllocatableThresholdPercent(asked.Config, node, pods)
		return map[string]any{"release": qosmanagerUtil.AmountsOf(found)}, nil
	case "candidates":
		return c.candidates(asked, pods), nil
	case "round":
		node.Status.Capacity, node.Status.Allocatable = asked.Node.Capacity, asked.Node.Allocatable
		if asked.NodeUsed != nil {
			metrics.PutOne(metriccache.NodeCPUUsageMetric, nil, *asked.NodeUsed)
		}
		if asked.BE != nil {
			putBE(metrics, asked.BE.Avg, asked.BE.Current)
		}
		c.evictCoolingInterval = 0
		return c.round(asked, executor), nil
	}
	return nil, fmt.Errorf("nothing answers %s", asked.Op)
}

func putBE(metrics *metriccache.Known, average, current *beSample) {
	put := func(name metriccache.MetricPropertyValue, of func(*beSample) *float64) {
		properties := metriccache.MetricPropertiesFunc.NodeBE(string(metriccache.BEResourceCPU), string(name))
		sample := metriccache.Sample{}
		if average != nil {
			sample.Count, sample.Avg = average.Count, of(average)
		}
		if current != nil {
			sample.Last = of(current)
		}
		metrics.Put(metriccache.NodeBEMetric, properties, sample)
	}
	put(metriccache.BEResourceAllocationUsage, func(s *beSample) *float64 { return &s.Usage })
	put(metriccache.BEResourceAllocationRequest, func(s *beSample) *float64 { return &s.Request })
	put(metriccache.BEResourceAllocationRealLimit, func(s *beSample) *float64 { return &s.RealLimit })
}

func (c *cpuEvictor) candidates(asked cpuEvictQuestion, pods []*statesinformer.PodMeta) any {
	limits := &slov1alpha1.ResourceThresholdStrategy{
		EvictEnabledPriorityThreshold: asked.PriorityThreshold, AllocatableEvictPriorityThreshold: asked.PriorityThreshold,
	}
	sorted := map[string]func(string, *slov1alpha1.ResourceThresholdStrategy, []*statesinformer.PodMeta) []*qosmanagerUtil.PodEvictInfo{
		"BECPUEvict": c.getBEPodEvictInfoAndSort, "CPUEvict": c.getPodEvictInfoAndSortByUsed,
		"CPUAllocatableEvict": c.getPodEvictInfoAndSortByAllocatable,
	}
	return qosmanagerUtil.NamesOf(sorted[asked.Feature](asked.Feature, limits, pods))
}

func (c *cpuEvictor) round(asked cpuEvictQuestion, executor *qosmanagerUtil.KnownExecutor) any {
	gates := map[string]bool{}
	for _, name := range all {
		gates[string(name)] = false
	}
	for _, name := range asked.Features {
		gates[name] = true
	}
	if err := features.DefaultMutableKoordletFeatureGate.SetFromMap(gates); err != nil {
		panic(err)
	}
	states := c.statesInformer.(*statesinformer.Known)
	tasks := []any{}
	for _, name := range all {
		disabled, err := features.IsFeatureDisabled(states.NodeSLO, name)
		if !gates[string(name)] || disabled || err != nil || states.Node.Status.Capacity.Cpu().MilliValue() <= 0 {
			continue
		}
		if task, err := c.buildEvictTask(name, states.NodeSLO, states.Node); err == nil && task != nil {
			if amounts := qosmanagerUtil.AmountsOf(task.ToReleaseResource); len(amounts) > 0 {
				tasks = append(tasks, map[string]any{"feature": name, "toRelease": amounts})
			}
		}
	}
	c.cpuEvict()
	return map[string]any{"victims": executor.Victims, "newlyEvicted": !c.lastEvictTime.IsZero(), "tasks": tasks}
}
