// in pkg/koordlet/util/perf
package perf

import "github.com/hodgesds/perf-utils"

// Reading is what a counter of hardware events says.
type Reading struct {
	Value     uint64 `json:"value"`
	EnabledNs uint64 `json:"enabledNs"`
	RunningNs uint64 `json:"runningNs"`
}

type knownCounter struct {
	perf.HardwareProfiler
	reading Reading
}

func (k knownCounter) Profile(profile *perf.HardwareProfile) error {
	reading := k.reading
	*profile = perf.HardwareProfile{
		CPUCycles: &reading.Value, Instructions: &reading.Value, TimeEnabled: &reading.EnabledNs, TimeRunning: &reading.RunningNs,
	}
	return nil
}

// CountOf is the number of events that these readings of one CPU each stand for.
func CountOf(readings []Reading) (float64, error) {
	collector := &PerfCollector{cpuHwProfilersMap: map[int]*perf.HardwareProfiler{}}
	for cpu, reading := range readings {
		var counter perf.HardwareProfiler = knownCounter{reading: reading}
		collector.cpus = append(collector.cpus, cpu)
		collector.cpuHwProfilersMap[cpu] = &counter
	}
	found, err := collector.collect()
	return found.cycles, err
}
