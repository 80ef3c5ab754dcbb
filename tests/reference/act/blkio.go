// in pkg/koordlet/qosmanager/plugins/blkio
package blkio

import (
	"fmt"

	slov1alpha1 "github.com/koordinator-sh/koordinator/apis/slo/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/qosmanager/plugins/sysreconcile"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/resourceexecutor"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/util/system"
)

type hostQuestion struct {
	Op              string
	Strategy        *slov1alpha1.SystemStrategy
	NodeMemory      string
	CurrentFeatures string
	Disk            string
	IOCfg           slov1alpha1.IOCfg
	File            string
	Current, Value  string
}

func init() { answering.Area("sysconfig-blkio", answering.Of(hostAnswer)) }

func hostAnswer(asked hostQuestion) (any, error) {
	block := &slov1alpha1.BlockCfg{IOCfg: asked.IOCfg}
	switch asked.Op {
	case "sysconfig":
		return sysreconcile.WritesOf(asked.Strategy, asked.NodeMemory, asked.CurrentFeatures)
	case "blkio_be":
		return writesOf(getBlkIOUpdaterFromBlockCfg(block, asked.Disk, "dir")), nil
	case "blkio_root":
		return writesOf(getDiskConfigUpdaterFromBlockCfg(block, asked.Disk, "")), nil
	case "blkio_needs_write":
		if asked.File == system.BlkioIOQoSName || asked.File == system.BlkioIOModelName {
			return map[string]any{"write": resourceexecutor.CheckIfBlkRootConfigNeedUpdate(asked.Current, asked.Value)}, nil
		}
		return map[string]any{"write": resourceexecutor.CheckIfBlkQOSNeedUpdate(asked.Current, asked.Value)}, nil
	}
	return nil, fmt.Errorf("nothing answers %s", asked.Op)
}

func writesOf(updaters []resourceexecutor.ResourceUpdater) any {
	files, found := &resourceexecutor.Known{}, map[string]string{}
	files.UpdateBatch(false, updaters...)
	for _, write := range files.Writes {
		found[write.Resource] = write.Value
	}
	return map[string]any{"writes": found}
}
