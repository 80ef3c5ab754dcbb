// in pkg/scheduler/plugins/coscheduling/controller
package controller

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelister "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	schedv1alpha1 "github.com/koordinator-sh/koordinator/apis/thirdparty/scheduler-plugins/pkg/apis/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/apis/thirdparty/scheduler-plugins/pkg/generated/clientset/versioned/fake"
	schedlister "github.com/koordinator-sh/koordinator/apis/thirdparty/scheduler-plugins/pkg/generated/listers/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/plugins/coscheduling/core"
)

const syncs = 20

type phaseQuestion struct {
	PodGroup schedv1alpha1.PodGroup `json:"podGroup"`
	Check    string                 `json:"check"`
	Pods     []struct {
		Name      string      `json:"name"`
		Namespace string      `json:"namespace"`
		Phase     v1.PodPhase `json:"phase"`
		NodeName  string      `json:"nodeName"`
		Owners    []string    `json:"owners"`
	} `json:"pods"`
}

// gangOf is a gang with these members.
type gangOf struct {
	core.Manager
	pods  []*v1.Pod
	bound int32
}

func (g gangOf) GetAllPodsFromGang(string) []*v1.Pod { return g.pods }
func (g gangOf) GetBoundPodNumber(string) int32      { return g.bound }

func init() { answering.Area("podgroup-phase", answering.Of(phaseOf)) }

func phaseOf(asked phaseQuestion) (any, error) {
	group := &asked.PodGroup
	group.Namespace, group.Name = "default", "g"
	pods := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	gang := gangOf{}
	for _, each := range asked.Pods {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: each.Namespace, Name: each.Name}}
		pod.Spec.NodeName, pod.Status.Phase = each.NodeName, each.Phase
		for _, owner := range each.Owners {
			pod.OwnerReferences = append(pod.OwnerReferences, metav1.OwnerReference{Name: owner})
		}
		if each.NodeName != "" {
			gang.bound++
		}
		gang.pods = append(gang.pods, pod)
		_ = pods.Add(pod)
	}
	queue := workqueue.NewNamedRateLimitingQueue(workqueue.DefaultControllerRateLimiter(), "")
	defer queue.ShutDown()
	if asked.Check == "enqueue" {
		(&PodGroupController{pgQueue: queue}).pgAdded(group)
		return map[string]bool{"enqueued": queue.Len() > 0}, nil
	}
	client := fake.NewSimpleClientset(group)
	groups := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	ctrl := &PodGroupController{pgQueue: queue, pgLister: schedlister.NewPodGroupLister(groups),
		podLister: corelister.NewPodLister(pods), pgClient: client, pgManager: gang}
	var first schedv1alpha1.PodGroupStatus
	begun := time.Now().Add(-time.Minute)
	for i := 0; i < syncs; i++ {
		_ = groups.Add(group)
		if err := ctrl.syncHandler("default/g"); err != nil {
			return nil, err
		}
		written, err := client.SchedulingV1alpha1().PodGroups("default").Get(context.TODO(), "g", metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		if group = written; i == 0 {
			first = written.Status
		}
	}
	status := map[string]any{"phase": first.Phase, "scheduled": first.Scheduled, "running": first.Running,
		"succeeded": first.Succeeded, "failed": first.Failed}
	if first.OccupiedBy != "" {
		status["occupiedBy"] = first.OccupiedBy
	}
	if first.ScheduleStartTime.After(begun) {
		status["scheduleStartTime"] = "NOW"
	} else if !first.ScheduleStartTime.IsZero() {
		status["scheduleStartTime"] = first.ScheduleStartTime.UTC().Format(time.RFC3339)
	}
	return map[string]any{"afterOneSync": status, "settledPhase": group.Status.Phase}, nil
}
