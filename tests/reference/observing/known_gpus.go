// in pkg/koordlet/metricsadvisor/devices/gpu
package gpu

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"go.uber.org/atomic"

	"github.com/koordinator-sh/koordinator/pkg/koordlet/metriccache"
)

// UsageOf collects what processes use of cards, in their order: of these processes, or of all where `pids` is nil.
func UsageOf(cards []*nvml.GPU, pids []uint32) []metriccache.MetricSample {
	manager := &gpuDeviceManager{deviceCount: len(cards), start: atomic.NewBool(false)}
	for _, card := range cards {
		manager.devices = append(manager.devices, &device{
			Minor: int32(card.Minor), DeviceUUID: fmt.Sprint(card.Minor), Device: nvml.HandleOf(card),
		})
	}
	manager.collectGPUUsage()
	if pids == nil {
		return manager.getNodeGPUUsage()
	}
	return manager.getPodOrContainerTotalGPUUsageOfPIDs("uid", true, pids)
}
