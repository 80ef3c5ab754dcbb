// in pkg/koordlet/resourceexecutor
package resourceexecutor

import (
	"fmt"
	"strconv"

	sysutil "github.com/koordinator-sh/koordinator/pkg/koordlet/util/system"
	"github.com/koordinator-sh/koordinator/pkg/util/cpuset"
)

// Write is one write to a file of a group, or to another file.
type Write struct{ Dir, Resource, Value string }

// Known are files that hold what a question says, and keep what is written to them.
type Known struct {
	ResourceUpdateExecutor
	CgroupReader
	Quotas map[string]int64
	CPUs   string
	Tasks  []int32
	Writes []Write
}

func (k *Known) Run(<-chan struct{}) {}

func (k *Known) Update(_ bool, updater ResourceUpdater) (bool, error) {
	write := Write{"", string(updater.ResourceType()), updater.Value()}
	if of, ok := updater.(*CgroupResourceUpdater); ok {
		write.Dir = of.parentDir
	}
	k.Writes = append(k.Writes, write)
	if updater.ResourceType() == sysutil.CPUCFSQuotaName && k.Quotas != nil {
		k.Quotas[write.Dir], _ = strconv.ParseInt(write.Value, 10, 64)
	}
	return true, nil
}

func (k *Known) UpdateBatch(cacheable bool, updaters ...ResourceUpdater) {
	for _, each := range updaters {
		k.Update(cacheable, each)
	}
}

func (k *Known) LeveledUpdateBatch(levels [][]ResourceUpdater) {
	for _, level := range levels {
		k.UpdateBatch(true, level...)
	}
}

func (k *Known) ReadCPUQuota(dir string) (int64, error) {
	quota, found := k.Quotas[dir]
	if !found {
		return 0, fmt.Errorf("no group %s", dir)
	}
	return quota, nil
}

func (k *Known) ReadCPUSet(string) (*cpuset.CPUSet, error) {
	cpus, err := cpuset.Parse(k.CPUs)
	return &cpus, err
}

func (k *Known) ReadCPUTasks(string) ([]int32, error) { return k.Tasks, nil }
