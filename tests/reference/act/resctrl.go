// in pkg/koordlet/qosmanager/plugins/resctrl
package resctrl

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/koordinator-sh/koordinator/apis/extension"
	slov1alpha1 "github.com/koordinator-sh/koordinator/apis/slo/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/metriccache"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/resourceexecutor"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/statesinformer"
	koordletutil "github.com/koordinator-sh/koordinator/pkg/koordlet/util"
	resctrlutil "github.com/koordinator-sh/koordinator/pkg/koordlet/util/resctrl"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/util/system"
)

type resctrlQuestion struct {
	Op                       string
	CBM                      string
	StartPercent, EndPercent int64
	Vendor                   string
	Percent                  *int64
	CacheIDs                 []int
	Mask, Value              *string
	Content                  string
	Strategy                 *slov1alpha1.ResourceQOSStrategy
	Pod                      *corev1.Pod
	Enable                   map[string]bool
	CgroupTasks, GroupTasks  []int32
	Annotation               string
	PodUID                   string
	CPUInfoFlags             string
}

func init() { answering.Area("resctrl-schemata", answering.Of(resctrlAnswer)) }

func resctrlAnswer(asked resctrlQuestion) (any, error) {
	root, err := os.MkdirTemp("", "answering")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(root)
	system.Conf.SysFSRootDir = root
	system.CacheIdsCacheFunc = func() ([]int, error) { return asked.CacheIDs, nil }
	cbm, err := strconv.ParseUint(asked.CBM, 16, 32)
	if err != nil && asked.CBM != "" {
		return nil, err
	}
	raw := system.NewResctrlSchemataRaw(asked.CacheIDs)
	switch asked.Op {
	case "l3_mask":
		mask, err := system.CalculateCatL3MaskValue(uint(cbm), asked.StartPercent, asked.EndPercent)
		return map[string]any{"mask": textOrNil(mask, err == nil)}, nil
	case "mba":
		value := calculateMbaPercentForGroup(BEResctrlGroup, asked.Percent, extension.CPUBasicInfo{VendorID: asked.Vendor})
		return map[string]any{"value": textOrNil(value, value != "")}, nil
	case "lines":
		found := map[string]string{}
		if asked.Mask != nil {
			found["l3"] = raw.WithL3Mask(*asked.Mask).L3String()
		}
		if asked.Value != nil {
			found["mb"] = raw.WithMB(*asked.Value).MBString()
		}
		return found, nil
	case "parse":
		if err := raw.ParseResctrlSchemata(asked.Content, -1); err != nil {
			return map[string]any{"error": true}, nil
		}
		return map[string]any{"L3": raw.L3, "MB": raw.MB}, nil
	case "groups":
		return asked.groups(), nil
	case "pod_group":
		return asked.podGroup()
	case "new_tasks":
		known := map[int32]struct{}{}
		for _, task := range asked.GroupTasks {
			known[task] = struct{}{}
		}
		r := &resctrlReconcile{cgroupReader: &resourceexecutor.Known{Tasks: asked.CgroupTasks}}
		tasks, err := r.getContainerCgroupNewTaskIds("dir", known)
		if err != nil {
			return nil, err
		}
		updater, err := resourceexecutor.CalculateResctrlL3TasksResource(BEResctrlGroup, tasks)
		if err != nil {
			return nil, err
		}
		return map[string]any{"write": append([]string{}, strings.Fields(updater.Value())...)}, nil
	case "annotation":
		return asked.annotated()
	case "support":
		path := filepath.Join(root, "cpuinfo")
		if err := os.WriteFile(path, []byte("flags\t\t:"+asked.CPUInfoFlags+"\n"), 0o644); err != nil {
			return nil, err
		}
		cat, mba, err := system.ResctrlOfCPU(path)
		return map[string]any{"cat": cat, "mba": mba}, err
	}
	return nil, fmt.Errorf("nothing answers %s", asked.Op)
}

func textOrNil(text string, is bool) any {
	if is {
		return text
	}
	return nil
}

func (q resctrlQuestion) groups() any {
	metrics, files := metriccache.NewKnown(), &resourceexecutor.Known{}
	info := &metriccache.NodeCPUInfo{BasicInfo: extension.CPUBasicInfo{CatL3CbmMask: q.CBM, VendorID: q.Vendor}}
	info.TotalInfo.L3ToCPU = map[int32][]koordletutil.ProcessorInfo{}
	for _, id := range q.CacheIDs {
		info.TotalInfo.L3ToCPU[int32(id)] = nil
	}
	metrics.Set(metriccache.NodeCPUInfoKey, info)
	r := &resctrlReconcile{metricCache: metrics, executor: files}
	r.reconcileRDTResctrlPolicy(q.Strategy)
	lines := map[string][]string{}
	for _, group := range resctrlGroupList {
		lines[group] = []string{}
		for _, write := range files.Writes {
			if write.Resource == system.ResctrlSchemata.Path(group) {
				lines[group] = append(lines[group], write.Value)
			}
		}
	}
	return map[string]any{"lines": lines}
}

// podGroup says to whose tasks the one of the pod is written.
func (q resctrlQuestion) podGroup() (any, error) {
	classOf := func(name string) *slov1alpha1.ResourceQOS {
		enable := q.Enable[name]
		return &slov1alpha1.ResourceQOS{ResctrlQOS: &slov1alpha1.ResctrlQOSCfg{Enable: &enable}}
	}
	strategy := &slov1alpha1.ResourceQOSStrategy{
		LSRClass: classOf("lsrClass"), LSClass: classOf("lsClass"), BEClass: classOf("beClass"), SystemClass: classOf("systemClass"),
	}
	q.Pod.Spec.Containers = []corev1.Container{{Name: "main"}}
	q.Pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", ContainerID: "containerd://main"}}
	files := &resourceexecutor.Known{Tasks: []int32{7}}
	states := &statesinformer.Known{Pods: statesinformer.MetasOf([]*corev1.Pod{q.Pod})}
	r := &resctrlReconcile{statesInformer: states, executor: files, cgroupReader: files}
	r.reconcileResctrlGroups(strategy)
	for _, group := range resctrlGroupList {
		if len(files.Writes) > 0 && files.Writes[0].Resource == system.GetResctrlTasksFilePath(group) {
			return map[string]any{"group": group}, nil
		}
	}
	return map[string]any{"group": nil}, nil
}

func (q resctrlQuestion) annotated() (any, error) {
	path := system.GetResctrlL3CbmFilePath()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(path, []byte(q.CBM), 0o644); err != nil {
		return nil, err
	}
	engine, err := resctrlutil.NewRDTEngine(q.Vendor)
	if err != nil {
		return nil, err
	}
	heard := &heardUpdater{}
	if err := engine.RegisterApp(q.PodUID, q.Annotation, false, heard); err != nil {
		return map[string]any{"error": true}, nil
	}
	return map[string]any{"error": false, "group": heard.key, "schemata": heard.value}, nil
}

type heardUpdater struct{ key, value string }

func (h *heardUpdater) Name() string          { return "" }
func (h *heardUpdater) Key() string           { return h.key }
func (h *heardUpdater) Value() string         { return h.value }
func (h *heardUpdater) Update() error         { return nil }
func (h *heardUpdater) SetKey(key string)     { h.key = key }
func (h *heardUpdater) SetValue(value string) { h.value = value }
