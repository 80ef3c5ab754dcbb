// in pkg/koordlet/resourceexecutor
package resourceexecutor

import sysutil "github.com/koordinator-sh/koordinator/pkg/koordlet/util/system"

// Known are groups that hold what a question says, by folder where they differ.
type Known struct {
	CgroupReader
	Quota, Period int64
	Usages        map[string]uint64
	MemoryUsages  map[string]uint64
	MemoryStats   map[string]*sysutil.MemoryStatRaw
}

func (k *Known) ReadCPUQuota(string) (int64, error) { return k.Quota, nil }

func (k *Known) ReadCPUPeriod(string) (int64, error) { return k.Period, nil }

func (k *Known) ReadCPUAcctUsage(dir string) (uint64, error) { return k.Usages[dir], nil }

func (k *Known) ReadMemoryUsage(dir string) (uint64, error) { return k.MemoryUsages[dir], nil }

func (k *Known) ReadMemoryStat(dir string) (*sysutil.MemoryStatRaw, error) {
	return k.MemoryStats[dir], nil
}
