// in pkg/koordlet/util/system
package system

// ResctrlOfCPU says whether flags in a file name caches and bandwidth.
func ResctrlOfCPU(path string) (bool, bool, error) { return isResctrlAvailableByCpuInfo(path) }
