// in pkg/koordlet/metricsadvisor/collectors/noderesource
package noderesource

import (
	"fmt"
	"time"

	"go.uber.org/atomic"

	"github.com/koordinator-sh/koordinator/pkg/koordlet/metriccache"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/metricsadvisor/framework"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/util/system"
)

// CoresOf is what the collector stores of two readings.
func CoresOf(last, now uint64, elapsed time.Duration, ticksPerSecond int64) float64 {
	files := system.NewFiles()
	defer files.Gone()
	system.Jiffies = float64(time.Second) / float64(ticksPerSecond)
	files.Put(system.GetProcFilePath(system.ProcMemInfoName), "MemTotal: 1 kB\n")
	files.Put(system.GetProcFilePath(system.ProcStatName), fmt.Sprintf("cpu %d 0 0 0 0 0 0\n", now))
	at := time.Now()
	timeNow = func() time.Time { return at }
	known, state := &metriccache.Known{}, framework.NewSharedState()
	collector := &nodeResourceCollector{
		started: atomic.NewBool(false), appendableDB: known, metricDB: known, sharedState: state,
		lastNodeCPUStat: &framework.CPUStat{CPUTick: last, Timestamp: at.Add(-elapsed)},
	}
	collector.collectNodeResUsed()
	cpu, _ := state.GetNodeUsage()
	return cpu.Value
}
