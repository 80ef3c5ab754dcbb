// in pkg/koordlet/qosmanager/plugins/memoryevict
package memoryevict

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-base/featuregate"

	slov1alpha1 "github.com/koordinator-sh/koordinator/apis/slo/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/features"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/metriccache"
	qosmanagerUtil "github.com/koordinator-sh/koordinator/pkg/koordlet/qosmanager/plugins/util"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/statesinformer"
)

type memoryEvictQuestion struct {
	qosmanagerUtil.EvictRound
	Config *slov1alpha1.ResourceThresholdStrategy
	Used   float64
}

var all = []featuregate.Feature{features.BEMemoryEvict, features.MemoryAllocatableEvict, features.MemoryEvict}

func init() { answering.Area("memory-evict", answering.Of(memoryEvictAnswer)) }

func memoryEvictAnswer(asked memoryEvictQuestion) (any, error) {
	metrics, node := metriccache.NewKnown(), &corev1.Node{}
	for uid, used := range asked.PodUsed {
		metrics.PutOne(metriccache.PodMemUsageMetric, metriccache.MetricPropertiesFunc.Pod(uid), used)
	}
	pods := statesinformer.MetasOf(asked.Pods)
	states := &statesinformer.Known{Node: node, Pods: pods}
	states.NodeSLO = &slov1alpha1.NodeSLO{Spec: slov1alpha1.NodeSLOSpec{ResourceUsedThresholdWithBE: asked.Config}}
	executor := asked.Executor()
	m := &memoryEvictor{metricCollectInterval: time.Second, statesInformer: states, metricCache: metrics, evictExecutor: executor}
	switch asked.Op {
	case "config":
		return qosmanagerUtil.ValidityOf(generateConfigCheck(featuregate.Feature(asked.Feature))(asked.Config)), nil
	case "used_threshold":
		node.Status.Capacity = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(asked.Capacity)}
		metrics.PutOne(metriccache.NodeMemoryUsageMetric, nil, asked.Used)
		found, _ := m.calculateReleaseByUsedThresholdPercent(asked.Config, node, pods)
		return map[string]any{"release": found.Memory().Value()}, nil
	case "allocatable":
		node.Status.Allocatable = asked.Allocatable
		found, _ := m.calculateReleaseByAllocatableThresholdPercent(asked.Config, node, pods)
		return map[string]any{"release": qosmanagerUtil.AmountsOf(found)}, nil
	case "candidates":
		return m.candidates(asked, pods), nil
	case "round":
		node.Status.Capacity, node.Status.Allocatable = asked.Node.Capacity, asked.Node.Allocatable
		if asked.NodeUsed != nil {
			metrics.PutOne(metriccache.NodeMemoryUsageMetric, nil, *asked.NodeUsed)
		}
		return m.round(asked, executor), nil
	}
	return nil, fmt.Errorf("nothing answers %s", asked.Op)
}

func (m *memoryEvictor) candidates(asked memoryEvictQuestion, pods []*statesinformer.PodMeta) any {
	limits := &slov1alpha1.ResourceThresholdStrategy{
		EvictEnabledPriorityThreshold: asked.PriorityThreshold, AllocatableEvictPriorityThreshold: asked.PriorityThreshold,
	}
	sorted := map[string]func(string, *slov1alpha1.ResourceThresholdStrategy, []*statesinformer.PodMeta) []*qosmanagerUtil.PodEvictInfo{
		"BEMemoryEvict": m.getSortedBEPodInfos, "MemoryEvict": m.getPodEvictInfoAndSortByUsed,
		"MemoryAllocatableEvict": m.getPodEvictInfoAndSortByAllocatable,
	}
	return qosmanagerUtil.NamesOf(sorted[asked.Feature](asked.Feature, limits, pods))
}

func (m *memoryEvictor) round(asked memoryEvictQuestion, executor *qosmanagerUtil.KnownExecutor) any {
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
	states := m.statesInformer.(*statesinformer.Known)
	tasks := []any{}
	for _, name := range all {
		disabled, err := features.IsFeatureDisabled(states.NodeSLO, name)
		if !gates[string(name)] || disabled || err != nil || states.Node.Status.Capacity.Memory().Value() <= 0 {
			continue
		}
		if task, err := m.buildEvictTask(name, states.NodeSLO, states.Node); err == nil && task != nil {
			if amounts := qosmanagerUtil.AmountsOf(task.ToReleaseResource); len(amounts) > 0 {
				tasks = append(tasks, map[string]any{"feature": name, "toRelease": amounts})
			}
		}
	}
	m.memoryEvict()
	return map[string]any{"victims": executor.Victims, "newlyEvicted": !m.lastEvictTime.IsZero(), "tasks": tasks}
}
