// in pkg/koordlet/qosmanager/plugins/cpusuppress
package cpusuppress

import (
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/resourceexecutor"
	koordletutil "github.com/koordinator-sh/koordinator/pkg/koordlet/util"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/util/system"
	"github.com/koordinator-sh/koordinator/pkg/util/cpuset"
)

// top is how questions call the group of all best-effort pods.
const top = "be"

func init() { answering.Area("resource-update-order", answering.Of(updateOrder)) }

func updateOrder(asked resourceexecutor.UpdateOrder) (any, error) {
	if asked.Op != "be_cpuset" {
		return asked.Answer()
	}
	w := resourceexecutor.NewWatched(1)
	defer w.Done()
	root := koordletutil.GetPodQoSRelativePath(corev1.PodQOSBestEffort)
	for _, group := range asked.Groups {
		w.Put(filepath.Join(root, strings.TrimPrefix(group, top)), system.CPUSetCPUSName, asked.Old)
	}
	old, err := cpuset.Parse(asked.Old)
	if err != nil {
		return nil, err
	}
	cpus, err := cpuset.Parse(asked.New)
	if err != nil {
		return nil, err
	}
	r := &CPUSuppress{executor: w}
	if err := r.applyCPUSetWithNonePolicy(cpus.ToInt32Slice(), old.ToInt32Slice()); err != nil {
		return nil, err
	}
	writes := []string{}
	for _, write := range w.Writes {
		name := strings.Replace(write, "/"+system.CPUSetCPUSName+"=", "=", 1)
		writes = append(writes, top+strings.TrimPrefix(name, filepath.Clean(root)))
	}
	return map[string]any{"writes": writes}, nil
}
