// in pkg/koordlet/metricsadvisor/collectors/hostapplication
package hostapplication

import (
	"time"

	gocache "github.com/patrickmn/go-cache"
	"go.uber.org/atomic"

	"github.com/koordinator-sh/koordinator/pkg/koordlet/metriccache"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/metricsadvisor/framework"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/resourceexecutor"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/statesinformer"
)

// TotalOf is what the collector finds that all applications use, between their last usages and those of the groups.
func TotalOf(states *statesinformer.Known, groups *resourceexecutor.Known, last map[string]uint64, elapsed time.Duration) (cores, memory float64) {
	at := time.Now()
	timeNow = func() time.Time { return at }
	state := framework.NewSharedState()
	collector := &hostAppCollector{
		started: atomic.NewBool(false), appendableDB: &metriccache.Known{}, statesInformer: states, cgroupReader: groups,
		sharedState: state, lastAppCPUStat: gocache.New(time.Hour, 0),
	}
	for name, usage := range last {
		collector.lastAppCPUStat.Set(name, framework.CPUStat{CPUUsage: usage, Timestamp: at.Add(-elapsed)}, gocache.NoExpiration)
	}
	collector.collectHostAppResUsed()
	cpu, mem := state.GetHostAppUsage()
	return cpu.Value, mem.Value
}
