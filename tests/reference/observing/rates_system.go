// in pkg/koordlet/metricsadvisor/collectors/sysresource
package sysresource

import (
	"time"

	"go.uber.org/atomic"

	"github.com/koordinator-sh/koordinator/pkg/koordlet/metriccache"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/metricsadvisor/framework"
)

// StoredOf are the samples that the collector stores at a time.
func StoredOf(state *framework.SharedState, at time.Time, outdated time.Duration) []metriccache.MetricSample {
	timeNow = func() time.Time { return at }
	known := &metriccache.Known{}
	collector := &systemResourceCollector{
		outdatedInterval: outdated, started: atomic.NewBool(false), appendableDB: known, sharedState: state,
	}
	collector.collectSysResUsed()
	return known.Taken
}
