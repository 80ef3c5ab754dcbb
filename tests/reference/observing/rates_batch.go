// in pkg/koordlet/metricsadvisor/collectors/beresource
package beresource

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/koordinator-sh/koordinator/pkg/koordlet/metricsadvisor/framework"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/resourceexecutor"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/statesinformer"
	koordletutil "github.com/koordinator-sh/koordinator/pkg/koordlet/util"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/util/system"
)

// UsageOf is what batch used between two readings, in thousandths of cores.
func UsageOf(last, now uint64, elapsed time.Duration) (int64, error) {
	group := koordletutil.GetPodQoSRelativePath(corev1.PodQOSBestEffort)
	collector := &beResourceCollector{cgroupReader: &resourceexecutor.Known{Usages: map[string]uint64{group: now}}}
	for {
		begun := time.Now().Add(-elapsed)
		collector.lastBECPUStat = &framework.CPUStat{CPUUsage: last, Timestamp: begun}
		found, err := collector.getBECPUUsageMilliCores()
		if collector.lastBECPUStat.Timestamp.Sub(begun).Milliseconds() == elapsed.Milliseconds() {
			return found, err
		}
	}
}

// LimitOf is what batch may use with these CPUs and this quota.
func LimitOf(cpus string, quota, period int64) (int, error) {
	files := system.NewFiles()
	defer files.Gone()
	resource, err := system.GetCgroupResource(system.CPUSetCPUSName)
	if err != nil {
		return 0, err
	}
	files.Put(resource.Path(koordletutil.GetPodQoSRelativePath(corev1.PodQOSBestEffort)), cpus+"\n")
	return (&beResourceCollector{cgroupReader: &resourceexecutor.Known{Quota: quota, Period: period}}).getBECPURealMilliLimit()
}

// RequestOf is what pods of batch request.
func RequestOf(pods []*corev1.Pod) int64 {
	return (&beResourceCollector{statesInformer: &statesinformer.Known{Pods: pods}}).getBECPURequestMilliCores()
}
