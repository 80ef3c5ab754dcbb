// in pkg/koordlet/util/perf_group
package perf_group

import (
	"errors"
	"os"
)

// Hardware events are counted by a library in C, which this program is built without; no answer needs them.
type PerfGroupCollector struct{}

func (c *PerfGroupCollector) CleanUp() error { return nil }

var errNone = errors.New("no hardware events")

func GetAndStartPerfGroupCollectorOnContainer(*os.File, []int, []string) (*PerfGroupCollector, error) {
	return nil, errNone
}

func GetContainerCyclesAndInstructionsGroup(*PerfGroupCollector) (float64, float64, error) {
	return 0, 0, errNone
}
