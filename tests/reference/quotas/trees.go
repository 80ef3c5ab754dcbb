// in pkg/scheduler/plugins/elasticquota/core
package core

import (
	"encoding/json"
	"fmt"
	"sort"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"

	"github.com/koordinator-sh/koordinator/apis/extension"
	"github.com/koordinator-sh/koordinator/apis/thirdparty/scheduler-plugins/pkg/apis/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/features"
)

// AskedOptions are the settings of a manager.
type AskedOptions struct {
	MinScale        *bool  `json:"minScale"`
	GuaranteeUsage  bool   `json:"guaranteeUsage"`
	TerminatingMode string `json:"terminatingMode"`
}

// AskedQuota is an ElasticQuota as areas write it.
type AskedQuota struct {
	Name       string          `json:"name"`
	Namespace  string          `json:"namespace"`
	Namespaces []string        `json:"namespaces"`
	TreeID     string          `json:"treeId"`
	Parent     string          `json:"parent"`
	IsParent   bool            `json:"isParent"`
	Lend       *bool           `json:"lend"`
	Min        v1.ResourceList `json:"min"`
	Max        v1.ResourceList `json:"max"`
	Weight     v1.ResourceList `json:"weight"`
}

// Object is the quota as the API server has it.
func (q AskedQuota) Object() *v1alpha1.ElasticQuota {
	found := &v1alpha1.ElasticQuota{ObjectMeta: metav1.ObjectMeta{
		Namespace: q.Namespace, Name: q.Name, Annotations: map[string]string{},
		Labels: map[string]string{extension.LabelQuotaIsParent: strconv.FormatBool(q.IsParent)},
	}}
	found.Spec.Min, found.Spec.Max = q.Min, q.Max
	if q.Parent != "" {
		found.Labels[extension.LabelQuotaParent] = q.Parent
	}
	if q.Lend != nil {
		found.Labels[extension.LabelAllowLentResource] = strconv.FormatBool(*q.Lend)
	}
	if q.TreeID != "" {
		found.Labels[extension.LabelQuotaTreeID] = q.TreeID
	}
	if q.Weight != nil {
		text, _ := json.Marshal(q.Weight)
		found.Annotations[extension.AnnotationSharedWeight] = string(text)
	}
	if q.Namespaces != nil {
		text, _ := json.Marshal(q.Namespaces)
		found.Annotations[extension.AnnotationQuotaNamespaces] = string(text)
	}
	return found
}

// AskedPod is a pod as areas write it.
type AskedPod struct {
	Name           string          `json:"name"`
	Request        v1.ResourceList `json:"request"`
	Node           string          `json:"node"`
	NonPreemptible bool            `json:"nonPreemptible"`
	Phase          v1.PodPhase     `json:"phase"`
	Terminating    *struct {
		Seconds float64 `json:"secondsSinceDeletionTimestamp"`
		Grace   *int64  `json:"gracePeriodSeconds"`
	} `json:"terminating"`
}

// Object is the pod as the API server has it.
func (p *AskedPod) Object() *v1.Pod {
	if p == nil {
		return nil
	}
	found := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: p.Name, Labels: map[string]string{}}}
	found.Spec.NodeName, found.Status.Phase = p.Node, p.Phase
	found.Spec.Containers = []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Requests: p.Request}}}
	if p.NonPreemptible {
		found.Labels[extension.LabelPreemptible] = "false"
	}
	if p.Terminating != nil {
		// Half a second less than asked: the clock runs on meanwhile, and a limit is not yet passed when it is reached.
		since := time.Duration(p.Terminating.Seconds*float64(time.Second)) - time.Second/2
		found.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(-since)}
		found.DeletionGracePeriodSeconds = p.Terminating.Grace
	}
	return found
}

// AskedStep is one event, or a look at what it made.
type AskedStep struct {
	Op          string          `json:"op"`
	Name        string          `json:"name"`
	Allocatable v1.ResourceList `json:"allocatable"`
	New         v1.ResourceList `json:"new"`
	Quota       json.RawMessage `json:"quota"`
	OldQuota    string          `json:"oldQuota"`
	Pod         *AskedPod       `json:"pod"`
	Old         json.RawMessage `json:"old"`
	Quotas      []string        `json:"quotas"`
	ID          string          `json:"id"`
	// Quota → fields.
	Read map[string][]string `json:"read"`
}

// Gates switches exactly these on.
func Gates(on ...string) error {
	gates := map[string]bool{}
	for _, name := range []string{
		string(features.MultiQuotaTree), string(features.DisableDefaultQuota),
		string(features.ElasticQuotaGuaranteeUsage), string(features.ElasticQuotaIgnoreTerminatingPod),
		string(features.ElasticQuotaImmediateIgnoreTerminatingPod),
	} {
		gates[name] = false
	}
	for _, name := range on {
		gates[name] = true
	}
	return utilfeature.DefaultMutableFeatureGate.SetFromMap(gates)
}

// Manager is one with the settings of a question.
func (o AskedOptions) Manager() (*GroupQuotaManager, error) {
	on := []string{}
	if o.GuaranteeUsage {
		on = append(on, string(features.ElasticQuotaGuaranteeUsage))
	}
	switch o.TerminatingMode {
	case "afterGrace":
		on = append(on, string(features.ElasticQuotaIgnoreTerminatingPod))
	case "immediate":
		on = append(on, string(features.ElasticQuotaImmediateIgnoreTerminatingPod))
	}
	huge := createQuantity(1844674407370955161, v1.ResourceMemory)
	most := v1.ResourceList{v1.ResourceCPU: huge, v1.ResourceMemory: huge}
	return NewGroupQuotaManager("", o.MinScale == nil || *o.MinScale, most, most), Gates(on...)
}

// Play tells the manager what happened; the answers to `check`, by id.
func (gqm *GroupQuotaManager) Play(steps []AskedStep) (map[string]any, error) {
	seen := map[string]any{}
	for _, step := range steps {
		if err := gqm.step(step, seen); err != nil {
			return nil, err
		}
	}
	return seen, nil
}

func (gqm *GroupQuotaManager) step(step AskedStep, seen map[string]any) error {
	node := func(allocatable v1.ResourceList) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: step.Name}, Status: v1.NodeStatus{Allocatable: allocatable}}
	}
	var quota AskedQuota
	var name string
	var oldPod *AskedPod
	var oldAmounts v1.ResourceList
	for from, to := range map[*json.RawMessage]any{&step.Quota: &name, &step.Old: &oldPod} {
		if step.Op == "setQuota" {
			to = &quota
		} else if step.Op == "nodeUpdate" {
			to = &oldAmounts
		}
		if len(*from) > 0 {
			if err := json.Unmarshal(*from, to); err != nil {
				return err
			}
		}
	}
	switch step.Op {
	case "nodeAdd":
		gqm.OnNodeAdd(node(step.Allocatable))
	case "nodeUpdate":
		gqm.OnNodeUpdate(node(oldAmounts), node(step.New))
	case "nodeDelete":
		gqm.OnNodeDelete(node(step.Allocatable))
	case "setQuota":
		return gqm.UpdateQuota(quota.Object())
	case "deleteQuota":
		_ = gqm.DeleteQuota(AskedQuota{Name: step.Name}.Object())
	case "podAdd":
		gqm.OnPodAdd(name, step.Pod.Object())
	case "podUpdate":
		if step.OldQuota == "" {
			step.OldQuota = name
		}
		gqm.OnPodUpdate(name, step.OldQuota, step.Pod.Object(), oldPod.Object())
	case "podDelete":
		gqm.OnPodDelete(name, step.Pod.Object())
	case "reserve":
		gqm.ReservePod(name, step.Pod.Object())
	case "unreserve":
		gqm.UnreservePod(name, step.Pod.Object())
	case "refresh":
		for _, each := range step.Quotas {
			gqm.RefreshRuntime(each)
		}
	case "check":
		found := map[string]map[string]any{}
		for name, fields := range step.Read {
			found[name] = map[string]any{}
			for _, field := range fields {
				found[name][field] = gqm.field(name, field)
			}
		}
		seen[step.ID] = found
	default:
		return fmt.Errorf("unknown step %q", step.Op)
	}
	return nil
}

func (gqm *GroupQuotaManager) field(name, field string) any {
	info := gqm.GetQuotaInfoByName(name)
	switch field {
	case "exists":
		return info != nil
	case "pool":
		return gqm.totalResourceExceptSystemAndDefaultUsed
	case "total":
		return gqm.totalResource
	}
	if info == nil {
		return nil
	}
	if field == "pods" {
		pods := []string{}
		for _, each := range info.GetPodCache() {
			pods = append(pods, each.Name)
		}
		sort.Strings(pods)
		return pods
	}
	about := info.CalculateInfo
	return map[string]v1.ResourceList{
		"request":                   about.Request,
		"limitedRequest":            info.getLimitRequestNoLock(),
		"childRequest":              about.ChildRequest,
		"selfRequest":               about.SelfRequest,
		"nonPreemptibleRequest":     about.NonPreemptibleRequest,
		"selfNonPreemptibleRequest": about.SelfNonPreemptibleRequest,
		"used":                      about.Used,
		"selfUsed":                  about.SelfUsed,
		"nonPreemptibleUsed":        about.NonPreemptibleUsed,
		"selfNonPreemptibleUsed":    about.SelfNonPreemptibleUsed,
		"allocated":                 about.Allocated,
		"guaranteed":                about.Guaranteed,
		"min":                       about.Min,
		"max":                       about.Max,
		"sharedWeight":              about.SharedWeight,
		"autoScaleMin":              about.AutoScaleMin,
		"runtime":                   quotav1.Mask(about.Runtime, quotav1.ResourceNames(about.Max)),
	}[field]
}

type treeQuestion struct {
	Kind     string       `json:"kind"`
	Options  AskedOptions `json:"options"`
	Steps    []AskedStep  `json:"steps"`
	Total    int64        `json:"total"`
	Children []struct {
		Name      string `json:"name"`
		Weight    int64  `json:"weight"`
		Request   int64  `json:"request"`
		Min       int64  `json:"min"`
		Guarantee int64  `json:"guarantee"`
		Lend      *bool  `json:"lend"`
	} `json:"children"`
}

func init() {
	klog.SetLogger(logr.Discard())
	answering.Area("quota-runtime", answering.Of(tree))
	answering.Area("quota-accounting", answering.Of(tree))
	answering.Area("quota-guarantee", answering.Of(tree))
	answering.Area("quota-min-scale", answering.Of(tree))
}

func tree(asked treeQuestion) (any, error) {
	if asked.Kind == "level" {
		return level(asked), nil
	}
	manager, err := asked.Options.Manager()
	if err != nil {
		return nil, err
	}
	return manager.Play(asked.Steps)
}

func level(asked treeQuestion) any {
	shared := NewQuotaTree()
	for _, each := range asked.Children {
		lends := each.Lend == nil || *each.Lend
		shared.insert(each.Name, each.Weight, each.Request, each.Min, each.Guarantee, lends)
	}
	shared.redistribution(asked.Total)
	runtime := map[string]int64{}
	for name, node := range shared.quotaNodes {
		runtime[name] = node.runtimeQuota
	}
	return map[string]any{"runtime": runtime}
}
