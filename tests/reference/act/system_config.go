// in pkg/koordlet/qosmanager/plugins/sysreconcile
package sysreconcile

import (
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	slov1alpha1 "github.com/koordinator-sh/koordinator/apis/slo/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/resourceexecutor"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/statesinformer"
	sysutil "github.com/koordinator-sh/koordinator/pkg/koordlet/util/system"
)

// WritesOf a strategy: texts by short file name, and words for the scheduler's features.
func WritesOf(strategy *slov1alpha1.SystemStrategy, memory, features string) (any, error) {
	root, err := os.MkdirTemp("", "answering")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(root)
	sysutil.Conf.ProcRootDir, sysutil.Conf.SysRootDir = filepath.Join(root, "proc"), filepath.Join(root, "sys")
	path := sysutil.SchedFeatures.Path("")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	node := &corev1.Node{}
	node.Status.Capacity = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
	found, words := map[string]string{}, []string{}
	reconcile := func(strategy slov1alpha1.SystemStrategy) error {
		if err := os.WriteFile(path, []byte(features), 0o644); err != nil {
			return err
		}
		states := &statesinformer.Known{Node: node, NodeSLO: &slov1alpha1.NodeSLO{}}
		states.NodeSLO.Spec.SystemStrategy = &strategy
		files := &resourceexecutor.Known{}
		(&systemConfig{statesInformer: states, executor: files}).reconcile()
		for _, write := range files.Writes {
			name := strings.TrimPrefix(write.Resource, sysutil.Conf.ProcRootDir+"/sys/")
			found[strings.TrimPrefix(name, sysutil.Conf.SysRootDir+"/kernel/mm/")] = write.Value
		}
		return nil
	}
	// a file keeps the last word only
	wanted := strategy.SchedFeatures
	for name, value := range wanted {
		if err := reconcile(slov1alpha1.SystemStrategy{SchedFeatures: map[string]bool{name: value}}); err != nil {
			return nil, err
		}
		if text, _ := os.ReadFile(path); string(text) != features {
			words = append(words, strings.TrimSpace(string(text)))
		}
	}
	strategy.SchedFeatures = nil
	if err := reconcile(*strategy); err != nil {
		return nil, err
	}
	return map[string]any{"writes": found, "schedFeatures": words}, nil
}
