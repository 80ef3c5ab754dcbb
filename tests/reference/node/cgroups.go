// in pkg/koordlet/resourceexecutor
package resourceexecutor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/koordinator-sh/koordinator/pkg/answering"
	sysutil "github.com/koordinator-sh/koordinator/pkg/koordlet/util/system"
)

type textQuestion struct {
	Op           string `json:"op"`
	Version      int    `json:"version"`
	Text         string `json:"text"`
	Weight       int64  `json:"weight"`
	Shares       string `json:"shares"`
	ColdBoundary *int   `json:"coldBoundary"`
}

// Files of a group that the reader of an operation reads.
var filesOf = map[string]sysutil.ResourceType{
	"cpu-stat": sysutil.CPUStatName, "cpu-usage": sysutil.CPUAcctUsageName, "memory-stat": sysutil.MemoryStatName,
	"memory-numa-stat": sysutil.MemoryNumaStatName, "cpu-max-quota": sysutil.CPUCFSQuotaName,
	"cpu-max-period": sysutil.CPUCFSPeriodName, "memory-limit": sysutil.MemoryLimitName, "procs": sysutil.CPUProcsName,
}

func init() { answering.Area("parse-cgroup", answering.Of(parsed)) }

func parsed(asked textQuestion) (any, error) {
	answer, err := read(asked)
	if errors.Is(err, errUnasked) {
		return nil, err
	}
	if err != nil {
		return map[string]bool{"error": true}, nil
	}
	return answer, nil
}

var errUnasked = errors.New("cannot be asked")

func read(asked textQuestion) (map[string]any, error) {
	switch asked.Op {
	case "weight-to-shares":
		shares, err := sysutil.ConvertCPUWeightToShares(asked.Weight)
		return map[string]any{"shares": shares}, err
	case "shares-to-weight":
		weight, err := sysutil.ConvertCPUSharesToWeight(asked.Shares)
		return map[string]any{"weight": weight}, err
	case "psi":
		return pressure(asked.Text)
	case "kidled":
		return idle(asked)
	}
	return ofFile(asked)
}

func ofFile(asked textQuestion) (map[string]any, error) {
	version, reader := sysutil.CgroupVersionV2, CgroupReader(&CgroupV2Reader{})
	if asked.Version == 1 {
		version, reader = sysutil.CgroupVersionV1, &CgroupV1Reader{}
	}
	folder, err := os.MkdirTemp("", "cgroups")
	if err != nil {
		return nil, errUnasked
	}
	defer os.RemoveAll(folder)
	sysutil.Conf.CgroupRootDir = folder
	resource, known := sysutil.DefaultRegistry.Get(version, filesOf[asked.Op])
	if !known {
		return nil, errUnasked
	}
	path := resource.Path("group")
	if os.MkdirAll(filepath.Dir(path), 0o755) != nil || os.WriteFile(path, []byte(asked.Text), 0o644) != nil {
		return nil, errUnasked
	}
	switch asked.Op {
	case "cpu-stat":
		stat, err := reader.ReadCPUStat("group")
		if err != nil {
			return nil, err
		}
		return map[string]any{"periods": stat.NrPeriods, "throttled": stat.NrThrottled,
			"throttledNanos": stat.ThrottledNanoSeconds}, nil
	case "cpu-usage":
		nanos, err := reader.ReadCPUAcctUsage("group")
		return map[string]any{"nanos": nanos}, err
	case "memory-stat":
		stat, err := reader.ReadMemoryStat("group")
		if err != nil {
			return nil, err
		}
		return map[string]any{"cache": stat.Cache, "rss": stat.RSS, "inactive_file": stat.InactiveFile,
			"active_file": stat.ActiveFile, "inactive_anon": stat.InactiveAnon, "active_anon": stat.ActiveAnon,
			"unevictable": stat.Unevictable, "usage": stat.Usage(), "usageWithPageCache": stat.UsageWithPageCache()}, nil
	case "memory-numa-stat":
		found, err := reader.ReadMemoryNumaStat("group")
		pages := [][2]uint64{}
		for _, each := range found {
			pages = append(pages, [2]uint64{uint64(each.NumaId), each.PagesNum})
		}
		return map[string]any{"pages": pages}, err
	case "cpu-max-quota":
		quota, err := reader.ReadCPUQuota("group")
		return map[string]any{"quotaMicros": quota}, err
	case "cpu-max-period":
		period, err := reader.ReadCPUPeriod("group")
		return map[string]any{"periodMicros": period}, err
	case "memory-limit":
		limit, err := reader.ReadMemoryLimit("group")
		return map[string]any{"limitBytes": limit}, err
	}
	pids, err := reader.ReadCPUProcs("group")
	return map[string]any{"pids": append([]uint32{}, pids...)}, err
}

func pressure(text string) (map[string]any, error) {
	stats, err := sysutil.ParsePSIStats(strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	line := func(each *sysutil.PSILine) any {
		return map[string]any{"avg10": each.Avg10, "avg60": each.Avg60, "avg300": each.Avg300, "total": each.Total}
	}
	return map[string]any{"some": line(stats.Some), "full": line(stats.Full), "fullSupported": stats.FullSupported}, nil
}

func idle(asked textQuestion) (map[string]any, error) {
	pages, err := sysutil.ParseMemoryIdlePageStats(asked.Text)
	if err != nil {
		return nil, err
	}
	if asked.ColdBoundary != nil {
		sysutil.SetKidledColdBoundary(*asked.ColdBoundary)
	}
	return map[string]any{"coldBytes": pages.GetColdPageTotalBytes(), "scanPeriodSeconds": pages.ScanPeriodInSeconds,
		"buckets": pages.Buckets}, nil
}
