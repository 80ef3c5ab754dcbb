// in pkg/koordlet/metricsadvisor/collectors/podthrottled
package podthrottled

import (
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	slov1alpha1 "github.com/koordinator-sh/koordinator/apis/slo/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/metriccache"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/metricsadvisor/collectors/beresource"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/metricsadvisor/collectors/hostapplication"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/metricsadvisor/collectors/noderesource"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/metricsadvisor/collectors/sysresource"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/metricsadvisor/framework"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/resourceexecutor"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/statesinformer"
	koordletutil "github.com/koordinator-sh/koordinator/pkg/koordlet/util"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/util/perf"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/util/system"
)

type knownUsage struct {
	Cores float64 `json:"cores"`
	Bytes float64 `json:"bytes"`
	AgeMs int64   `json:"ageMs"`
}

type ratesQuestion struct {
	Op                  string         `json:"op"`
	LastTicks           uint64         `json:"lastTicks"`
	Ticks               uint64         `json:"ticks"`
	ElapsedMs           int64          `json:"elapsedMs"`
	ElapsedNs           int64          `json:"elapsedNs"`
	ClockTicksPerSecond int64          `json:"clockTicksPerSecond"`
	LastNs              *uint64        `json:"lastNs"`
	NowNs               uint64         `json:"nowNs"`
	SmallestCpuset      string         `json:"smallestCpuset"`
	QuotaUs             int64          `json:"quotaUs"`
	PeriodUs            int64          `json:"periodUs"`
	LastPeriods         int64          `json:"lastPeriods"`
	LastThrottled       int64          `json:"lastThrottled"`
	Periods             int64          `json:"periods"`
	Throttled           int64          `json:"throttled"`
	OutdatedMs          int64          `json:"outdatedMs"`
	Node                *knownUsage    `json:"node"`
	HostApps            *knownUsage    `json:"hostApps"`
	Readings            []perf.Reading `json:"readings"`
	Policy              string         `json:"policy"`
	Apps                []struct {
		Cores                float64 `json:"cores"`
		MemoryStatUsageBytes int64   `json:"memoryStatUsageBytes"`
		MemoryUsageBytes     uint64  `json:"memoryUsageBytes"`
	} `json:"apps"`
	Level       string          `json:"level"`
	MemTotalKiB uint64          `json:"memTotalKiB"`
	MemFreeKiB  uint64          `json:"memFreeKiB"`
	ColdBytes   uint64          `json:"coldBytes"`
	MemoryStat  *knownStat      `json:"memoryStat"`
	Pods        json.RawMessage `json:"pods"`
}

type knownStat system.MemoryStatRaw

func init() { answering.Area("usage-rates", answering.Of(usageRates)) }

func usageRates(asked ratesQuestion) (any, error) {
	elapsed := time.Duration(asked.ElapsedMs) * time.Millisecond
	switch asked.Op {
	case "node-cpu":
		return cores(noderesource.CoresOf(asked.LastTicks, asked.Ticks, elapsed, asked.ClockTicksPerSecond)), nil
	case "cgroup-cpu":
		states, groups, _ := knownApps(1)
		groups.Usages["0"] = asked.NowNs
		found, _ := hostapplication.TotalOf(states, groups, map[string]uint64{"0": *asked.LastNs}, time.Duration(asked.ElapsedNs))
		return cores(found), nil
	case "be-usage":
		milli, err := int64(0), error(nil)
		if asked.LastNs != nil {
			milli, err = beresource.UsageOf(*asked.LastNs, asked.NowNs, elapsed)
		}
		return map[string]any{"milliCores": milli}, err
	case "be-limit":
		milli, err := beresource.LimitOf(asked.SmallestCpuset, asked.QuotaUs, asked.PeriodUs)
		return map[string]any{"milliCores": milli}, err
	case "be-request":
		pods := []*corev1.Pod{}
		err := json.Unmarshal(asked.Pods, &pods)
		return map[string]any{"milliCores": beresource.RequestOf(pods)}, err
	case "throttled-ratio":
		last := &system.CPUStatRaw{NrPeriods: asked.LastPeriods, NrThrottled: asked.LastThrottled}
		now := &system.CPUStatRaw{NrPeriods: asked.Periods, NrThrottled: asked.Throttled}
		return map[string]any{"ratio": system.CalcCPUThrottledRatio(now, last)}, nil
	case "system-usage":
		return asked.systemUsage()
	case "hot-page-memory":
		return asked.hotPages()
	case "host-app-total":
		return asked.hostApps()
	case "perf-scale":
		count, err := perf.CountOf(asked.Readings)
		return map[string]any{"count": count}, err
	}
	return nil, fmt.Errorf("this release has no %s", asked.Op)
}

func cores(found float64) map[string]any { return map[string]any{"cores": found} }

func (asked ratesQuestion) systemUsage() (any, error) {
	state, now := framework.NewSharedState(), time.Now()
	points := func(of knownUsage) (cpu, memory metriccache.Point) {
		at := now.Add(-time.Duration(of.AgeMs) * time.Millisecond)
		return metriccache.Point{Timestamp: at, Value: of.Cores}, metriccache.Point{Timestamp: at, Value: of.Bytes}
	}
	var pods []knownUsage
	if err := json.Unmarshal(asked.Pods, &pods); err != nil {
		return nil, err
	}
	for i, each := range pods {
		cpu, memory := points(each)
		state.UpdatePodUsage(fmt.Sprint(i), cpu, memory)
	}
	if asked.Node != nil {
		state.UpdateNodeUsage(points(*asked.Node))
	}
	if asked.HostApps != nil {
		state.UpdateHostAppUsage(points(*asked.HostApps))
	}
	stored := sysresource.StoredOf(state, now, time.Duration(asked.OutdatedMs)*time.Millisecond)
	if len(stored) == 0 {
		return map[string]any{"sample": nil}, nil
	}
	sample := map[string]float64{"cores": metriccache.ValueOf(stored[0]), "bytes": metriccache.ValueOf(stored[1])}
	return map[string]any{"sample": sample}, nil
}

func (asked ratesQuestion) hotPages() (any, error) {
	if asked.Level == "node" {
		files := system.NewFiles()
		defer files.Gone()
		text := fmt.Sprintf("MemTotal: %d kB\nMemFree: %d kB\n", asked.MemTotalKiB, asked.MemFreeKiB)
		files.Put(system.GetProcFilePath(system.ProcMemInfoName), text)
		found, err := koordletutil.GetNodeMemUsageWithHotPageCache(asked.ColdBytes)
		return map[string]any{"bytes": found}, err
	}
	groups := &resourceexecutor.Known{MemoryStats: map[string]*system.MemoryStatRaw{"": (*system.MemoryStatRaw)(asked.MemoryStat)}}
	found, err := koordletutil.GetCgroupMemUsageWithHotPageCache(groups, "", asked.ColdBytes)
	return map[string]any{"bytes": found}, err
}

// Applications whose names and groups are their numbers.
func knownApps(count int) (*statesinformer.Known, *resourceexecutor.Known, map[string]uint64) {
	groups := &resourceexecutor.Known{
		Usages: map[string]uint64{}, MemoryUsages: map[string]uint64{}, MemoryStats: map[string]*system.MemoryStatRaw{},
	}
	slo, last := &slov1alpha1.NodeSLO{}, map[string]uint64{}
	for i := range count {
		name := fmt.Sprint(i)
		slo.Spec.HostApplications = append(slo.Spec.HostApplications, slov1alpha1.HostApplicationSpec{Name: name})
		groups.MemoryStats[name], last[name] = &system.MemoryStatRaw{}, 0
	}
	return &statesinformer.Known{NodeSLO: slo}, groups, last
}

func (asked ratesQuestion) hostApps() (any, error) {
	states, groups, last := knownApps(len(asked.Apps))
	policy := slov1alpha1.NodeMemoryCollectPolicy(asked.Policy)
	states.MetricSpec = &slov1alpha1.NodeMetricSpec{CollectPolicy: &slov1alpha1.NodeMetricCollectPolicy{NodeMemoryCollectPolicy: &policy}}
	for i, app := range asked.Apps {
		name := fmt.Sprint(i)
		groups.Usages[name], groups.MemoryUsages[name] = uint64(app.Cores*1e12), app.MemoryUsageBytes
		groups.MemoryStats[name].ActiveAnon = app.MemoryStatUsageBytes
	}
	found, memory := hostapplication.TotalOf(states, groups, last, 1000*time.Second)
	return map[string]any{"cores": found, "bytes": memory}, nil
}
