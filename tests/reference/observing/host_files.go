// in pkg/koordlet/util
package util

import (
	"errors"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/util/system"
)

type hostQuestion struct {
	Op        string             `json:"op"`
	Text      string             `json:"text"`
	Dirs      map[string]*string `json:"dirs"`
	Skip      []int32            `json:"skip"`
	PIDs      []uint32           `json:"pids"`
	Stats     map[uint32]string  `json:"stats"`
	CPUInfo   string             `json:"cpuinfo"`
	SMTActive *string            `json:"smtActive"`
	NoTurbo   *string            `json:"noTurbo"`
	L3CbmMask *string            `json:"l3CbmMask"`
	LscpuY    string             `json:"lscpuY"`
	Files     map[string]string  `json:"files"`
}

func init() {
	answering.Area("parse-procfs", answering.Of(func(asked hostQuestion) (any, error) {
		return orWrong(asked.answer())
	}))
	answering.Area("storage-info", answering.Of(func(asked storageQuestion) (any, error) {
		return orWrong(asked.scan())
	}))
}

var errNotAsked = errors.New("cannot be asked")

func orWrong(answer any, err error) (any, error) {
	if err != nil && err != errNotAsked {
		return wrong, nil
	}
	return answer, err
}

func (asked hostQuestion) answer() (any, error) {
	files := system.NewFiles()
	defer files.Gone()
	path := files.At("text")
	files.Put(path, asked.Text)
	switch asked.Op {
	case "stat-total":
		ticks, err := readTotalCPUStat(path)
		return map[string]any{"ticks": ticks}, err
	case "meminfo":
		info, err := readMemInfo(path, false)
		if err != nil {
			return nil, err
		}
		return map[string]any{
			"totalBytes": info.MemTotalBytes(), "usageBytes": info.MemUsageBytes(), "usageWithPageCacheBytes": info.MemUsageWithPageCache(),
		}, nil
	case "numa-nodes":
		for name, text := range asked.Dirs {
			files.Put(system.GetSysNUMADir()+"/"+name+"/other", "")
			if text != nil {
				files.Put(system.GetNUMAMemInfoPath(name), *text)
			}
		}
		getSkipNUMAFn = func() sets.Set[int32] { return sets.New(asked.Skip...) }
		found, err := GetNodeNUMAInfo()
		if err != nil {
			return nil, err
		}
		total := map[int32]uint64{}
		for node, info := range found.MemInfoMap {
			total[node] = info.MemTotal
		}
		return map[string]any{"totalKiB": total}, nil
	case "id-list":
		found, err := system.IDsOf(asked.Text)
		return map[string]any{"ids": append([]int32{}, sets.List(found)...)}, err
	case "pid-stat":
		stat, err := system.ParseProcPIDStat(asked.Text)
		if err != nil {
			return nil, err
		}
		return map[string]any{
			"pid": stat.Pid, "comm": stat.Comm, "state": string(rune(stat.State)), "ppid": stat.Ppid, "pgrp": stat.Pgrp,
		}, nil
	case "pgids":
		for pid, text := range asked.Stats {
			files.Put(system.GetProcPIDStatPath(pid), text)
		}
		found, err := system.GetPGIDsForPIDs(asked.PIDs)
		return map[string]any{"pgids": append([]uint32{}, found...)}, err
	case "cpu-basic":
		return asked.cpuBasics(files)
	case "hugepages":
		for name, text := range asked.Files {
			files.Put(system.GetNUMAHugepagesNrPath("node0", name), text)
		}
		found, err := GetHugePagesInfo("node0")
		pages := map[uint64]uint64{}
		for size, info := range found {
			pages[size] = info.NumPages
		}
		return map[string]any{"pages": pages}, err
	}
	return nil, errNotAsked
}

func (asked hostQuestion) cpuBasics(files system.Files) (any, error) {
	files.Put(system.GetCPUInfoPath(), asked.CPUInfo)
	for path, text := range map[string]*string{
		system.GetSysCPUSMTActivePath(): asked.SMTActive, system.GetSysIntelPStateNoTurboPath(): asked.NoTurbo,
		system.ResctrlL3CbmMask.Path(""): asked.L3CbmMask,
	} {
		if text != nil {
			files.Put(path, *text)
		}
	}
	files.Put("output", asked.LscpuY)
	files.Put("lscpu", fmt.Sprintf("#!/bin/sh\nwhile IFS= read -r line; do echo \"$line\"; done < %s\n", files.At("output")))
	if err := os.Chmod(files.At("lscpu"), 0o755); err != nil {
		return nil, errNotAsked
	}
	old := os.Getenv("PATH")
	os.Setenv("PATH", string(files))
	defer os.Setenv("PATH", old)
	return getCPUBasicInfo()
}

type storageQuestion struct {
	Lsblk   string `json:"lsblk"`
	Vgs     string `json:"vgs"`
	Lvs     string `json:"lvs"`
	Findmnt string `json:"findmnt"`
}

func (asked storageQuestion) scan() (any, error) {
	info := &LocalStorageInfo{
		DiskNumberMap: map[string]string{}, NumberDiskMap: map[string]string{}, PartitionDiskMap: map[string]string{},
		VGDiskMap: map[string]string{}, LVMapperVGMap: map[string]string{}, MPDiskMap: map[string]string{},
	}
	err := errors.Join(
		info.scanDevicesOutput([]byte(asked.Lsblk)), info.scanVolumeGroupsOutput([]byte(asked.Vgs)),
		info.scanLogicalVolumesOutput([]byte(asked.Lvs)), info.scanMountPointOutput([]byte(asked.Findmnt)),
	)
	return map[string]any{
		"disks": info.DiskNumberMap, "partitions": info.PartitionDiskMap, "volumeGroups": info.VGDiskMap,
		"logicalVolumes": info.LVMapperVGMap, "mounts": info.MPDiskMap,
	}, err
}
