// in pkg/koordlet/resourceexecutor
package resourceexecutor

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/koordinator-sh/koordinator/pkg/answering"
	sysutil "github.com/koordinator-sh/koordinator/pkg/koordlet/util/system"
)

type conversionQuestion struct {
	Op       string               `json:"op"`
	Shares   int64                `json:"shares"`
	Weight   int64                `json:"weight"`
	Milli    int64                `json:"milli"`
	Resource sysutil.ResourceType `json:"resource"`
	Version  int                  `json:"version"`
	Dir      string               `json:"dir"`
	Value    string               `json:"value"`
	Content  string               `json:"content"`
}

func init() { answering.Area("cgroup-v2-convert", answering.Of(converted)) }

func converted(asked conversionQuestion) (any, error) {
	switch asked.Op {
	case "shares_to_weight":
		weight, err := sysutil.ConvertCPUSharesToWeight(strconv.FormatInt(asked.Shares, 10))
		return ifValid("weight", weight, err)
	case "weight_to_shares":
		shares, err := sysutil.ConvertCPUWeightToShares(asked.Weight)
		return ifValid("shares", shares, err)
	case "milli_to_shares":
		return map[string]int64{"shares": sysutil.MilliCPUToShares(asked.Milli)}, nil
	case "milli_to_quota":
		return map[string]int64{"quota": sysutil.MilliCPUToQuota(asked.Milli)}, nil
	}
	files := sysutil.NewFiles()
	defer files.Gone()
	sysutil.UseCgroupsV2.Store(asked.Version == 2)
	defer sysutil.UseCgroupsV2.Store(false)
	resource, err := sysutil.GetCgroupResource(asked.Resource)
	if asked.Op == "path" {
		if err != nil {
			return map[string]any{"path": nil}, nil
		}
		path, err := filepath.Rel(sysutil.Conf.CgroupRootDir, resource.Path(asked.Dir))
		return map[string]any{"path": path}, err
	}
	if err != nil {
		return nil, err
	}
	path := resource.Path("group")
	files.Put(path, asked.Content)
	if effective, err := sysutil.GetCgroupResource(sysutil.CPUSetCPUSEffectiveName); err == nil {
		files.Put(effective.Path("group"), asked.Content)
	}
	switch asked.Op {
	case "validate":
		valid, _ := resource.IsValid(asked.Value)
		return map[string]bool{"valid": valid}, nil
	case "write":
		updater, err := DefaultCgroupUpdaterFactory.New(asked.Resource, "group", asked.Value, nil)
		if err != nil {
			return nil, err
		}
		if updater.update() != nil {
			return map[string]bool{"error": true}, nil
		}
		text, err := os.ReadFile(path)
		return map[string]string{"text": string(text)}, err
	}
	reader := CgroupReader(&CgroupV1Reader{})
	if asked.Version == 2 {
		reader = &CgroupV2Reader{}
	}
	value, err := asked.read(reader)
	if err == errNotAsked {
		return nil, err
	}
	if err != nil {
		return map[string]bool{"error": true}, nil
	}
	return map[string]any{"value": value}, nil
}

var errNotAsked = fmt.Errorf("no reader of this file")

func ifValid(name string, value int64, err error) (any, error) {
	if err != nil {
		return map[string]any{name: nil}, nil
	}
	return map[string]any{name: value}, nil
}

func (asked conversionQuestion) read(reader CgroupReader) (any, error) {
	switch asked.Resource {
	case sysutil.CPUCFSQuotaName:
		return reader.ReadCPUQuota("group")
	case sysutil.CPUCFSPeriodName:
		return reader.ReadCPUPeriod("group")
	case sysutil.CPUSharesName:
		return reader.ReadCPUShares("group")
	case sysutil.MemoryLimitName:
		return reader.ReadMemoryLimit("group")
	case sysutil.CPUAcctUsageName:
		return reader.ReadCPUAcctUsage("group")
	case sysutil.CPUTasksName:
		found, err := reader.ReadCPUTasks("group")
		return append([]int32{}, found...), err
	case sysutil.CPUProcsName:
		found, err := reader.ReadCPUProcs("group")
		return append([]uint32{}, found...), err
	case sysutil.CPUSetCPUSName:
		found, err := reader.ReadCPUSet("group")
		if err != nil {
			return nil, err
		}
		return found.String(), nil
	case sysutil.CPUStatName:
		found, err := reader.ReadCPUStat("group")
		if err != nil {
			return nil, err
		}
		counts := map[string]any{"periods": found.NrPeriods, "throttled": found.NrThrottled}
		counts["throttledNs"] = found.ThrottledNanoSeconds
		return counts, nil
	case sysutil.MemoryStatName:
		found, err := reader.ReadMemoryStat("group")
		if err != nil {
			return nil, err
		}
		return map[string]any{"usage": found.Usage(), "usageWithPageCache": found.UsageWithPageCache()}, nil
	case sysutil.MemoryNumaStatName:
		found, err := reader.ReadMemoryNumaStat("group")
		pages := map[int]uint64{}
		for _, each := range found {
			pages[each.NumaId] = each.PagesNum
		}
		return pages, err
	}
	return nil, errNotAsked
}
