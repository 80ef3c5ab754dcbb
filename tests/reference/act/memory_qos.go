// in pkg/koordlet/qosmanager/plugins/cgreconcile
package cgreconcile

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	slov1alpha1 "github.com/koordinator-sh/koordinator/apis/slo/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/resourceexecutor"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/statesinformer"
	koordletutil "github.com/koordinator-sh/koordinator/pkg/koordlet/util"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/util/system"
	"github.com/koordinator-sh/koordinator/pkg/util"
)

type memoryQuestion struct {
	Op                    string
	Pod                   *corev1.Pod
	NodeConfig            slov1alpha1.MemoryQOS
	Pods                  []*corev1.Pod
	Strategy              *slov1alpha1.ResourceQOSStrategy
	NodeAllocatableMemory string
	CgroupVersion         int
	NotStarted            []string
}

type fileTexts map[string]string

func init() { answering.Area("cgreconcile", answering.Of(memoryAnswer)) }

func memoryAnswer(asked memoryQuestion) (any, error) {
	system.UseCgroupsV2.Store(asked.CgroupVersion == 2)
	defer system.UseCgroupsV2.Store(false)
	node := &corev1.Node{}
	if text := asked.NodeAllocatableMemory; text != "" {
		node.Status.Allocatable = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(text)}
	}
	m := &cgroupResourcesReconcile{}
	if asked.Op == "round" {
		return asked.round(m, node), nil
	}
	config := asked.NodeConfig
	merged, err := m.getMergedPodResourceQoS(asked.Pod, &slov1alpha1.ResourceQOS{MemoryQOS: &slov1alpha1.MemoryQOSCfg{MemoryQOS: config}})
	if err != nil {
		return nil, err
	}
	switch asked.Op {
	case "config":
		return map[string]any{"config": merged.MemoryQOS.MemoryQOS}, nil
	case "pod":
		return map[string]any{"files": textsOf(m.calculatePodResources(asked.Pod, "dir", merged))["dir"]}, nil
	case "container":
		container := &asked.Pod.Spec.Containers[0]
		return map[string]any{"files": textsOf(m.calculateContainerResources(container, asked.Pod, node, "dir", merged))["dir"]}, nil
	}
	return nil, fmt.Errorf("nothing answers %s", asked.Op)
}

// textsOf files, by group.
func textsOf(updaters []resourceexecutor.ResourceUpdater) map[string]fileTexts {
	files := &resourceexecutor.Known{}
	files.UpdateBatch(true, updaters...)
	found := map[string]fileTexts{"dir": {}}
	for _, write := range files.Writes {
		if found[write.Dir] == nil {
			found[write.Dir] = fileTexts{}
		}
		found[write.Dir][write.Resource] = write.Value
	}
	return found
}

func (q memoryQuestion) round(m *cgroupResourcesReconcile, node *corev1.Node) any {
	metas := []*statesinformer.PodMeta{}
	for _, pod := range q.Pods {
		for _, each := range pod.Spec.Containers {
			status := corev1.ContainerStatus{Name: each.Name, ContainerID: "containerd://" + each.Name}
			for _, name := range q.NotStarted {
				if name == each.Name {
					status.ContainerID = ""
				}
			}
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, status)
		}
		metas = append(metas, &statesinformer.PodMeta{Pod: pod, CgroupDir: "kubepods/" + pod.Name})
	}
	ofQoS, ofPods, ofContainers := m.calculateResources(q.Strategy, node, metas)
	qos, pods, containers := map[string]fileTexts{}, map[string]fileTexts{}, map[string]fileTexts{}
	texts := textsOf(ofQoS)
	for _, class := range []corev1.PodQOSClass{corev1.PodQOSGuaranteed, corev1.PodQOSBurstable, corev1.PodQOSBestEffort} {
		qos[string(class)] = orNone(texts[koordletutil.GetPodQoSRelativePath(class)])
	}
	foundPods, found := textsOf(ofPods), textsOf(ofContainers)
	for _, meta := range metas {
		if util.IsPodInactive(meta.Pod) {
			continue
		}
		pods[meta.Pod.Name] = orNone(foundPods[meta.CgroupDir])
		for index, each := range meta.Pod.Spec.Containers {
			dir, err := koordletutil.GetContainerCgroupParentDir(meta.CgroupDir, &meta.Pod.Status.ContainerStatuses[index])
			if err == nil {
				containers[meta.Pod.Name+"/"+each.Name] = orNone(found[dir])
			}
		}
	}
	return map[string]any{"qos": qos, "pods": pods, "containers": containers}
}

func orNone(found fileTexts) fileTexts {
	if found == nil {
		return fileTexts{}
	}
	return found
}
