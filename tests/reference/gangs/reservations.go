// in pkg/scheduler/plugins/reservation/controller
package controller

import (
	"context"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelister "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics/legacyregistry"

	apiext "github.com/koordinator-sh/koordinator/apis/extension"
	schedulingv1alpha1 "github.com/koordinator-sh/koordinator/apis/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/client/clientset/versioned/fake"
	schedulinglister "github.com/koordinator-sh/koordinator/pkg/client/listers/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/metrics"
)

// asking takes so long at most; what happens at the very moment has not happened.
const asking = 40 * time.Millisecond

// LifeQuestion is a Reservation at a moment.
type LifeQuestion struct {
	Reservation *schedulingv1alpha1.Reservation `json:"reservation"`
	Now         time.Time                       `json:"now"`
	NodeExists  bool                            `json:"nodeExists"`
	KeepSeconds int64                           `json:"gcDurationSeconds"`
	Pods        []struct {
		UID       types.UID           `json:"uid"`
		Namespace string              `json:"namespace"`
		Name      string              `json:"name"`
		Requests  corev1.ResourceList `json:"requests"`
		Of        *types.UID          `json:"allocatedUID"`
	} `json:"pods"`
}

// controllerOf is a controller that knows the reservation, as if it was now.
func (asked LifeQuestion) controllerOf() (*Controller, *fake.Clientset) {
	late := time.Since(asked.Now) + asking
	r := asked.Reservation
	r.CreationTimestamp.Time = r.CreationTimestamp.Add(late)
	if r.Spec.Expires != nil {
		r.Spec.Expires.Time = r.Spec.Expires.Add(late)
	}
	for i := range r.Status.Conditions {
		condition := &r.Status.Conditions[i]
		condition.LastTransitionTime.Time = condition.LastTransitionTime.Add(late)
		condition.LastProbeTime.Time = condition.LastProbeTime.Add(late)
	}
	nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	if asked.NodeExists {
		_ = nodes.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: r.Status.NodeName}})
	}
	reservations := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	_ = reservations.Add(r)
	client := fake.NewSimpleClientset(r)
	pods := map[types.UID]*corev1.Pod{}
	for _, each := range asked.Pods {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: each.UID, Namespace: each.Namespace, Name: each.Name}}
		pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: each.Requests}}}
		if each.Of != nil {
			apiext.SetReservationAllocated(pod, &schedulingv1alpha1.Reservation{ObjectMeta: metav1.ObjectMeta{UID: *each.Of}})
		}
		pods[each.UID] = pod
	}
	return &Controller{
		nodeLister: corelister.NewNodeLister(nodes), reservationLister: schedulinglister.NewReservationLister(reservations),
		koordClientSet: client, gcDuration: time.Duration(asked.KeepSeconds) * time.Second,
		pods: map[string]map[types.UID]*corev1.Pod{r.Status.NodeName: pods},
	}, client
}

// AnswerSync says what a pass makes of a Reservation.
func AnswerSync(asked LifeQuestion) (any, error) {
	ctrl, client := asked.controllerOf()
	r := asked.Reservation
	next, err := ctrl.sync(getReservationKey(r))
	if err != nil {
		return nil, err
	}
	written := len(client.Actions()) > 0
	if written {
		if r, err = ctrl.koordClientSet.SchedulingV1alpha1().Reservations().Get(context.Background(), r.Name, metav1.GetOptions{}); err != nil {
			return nil, err
		}
	}
	conditions, owners := []map[string]any{}, []map[string]any{}
	for _, each := range r.Status.Conditions {
		conditions = append(conditions, map[string]any{"type": each.Type, "status": each.Status, "reason": each.Reason})
	}
	for _, each := range r.Status.CurrentOwners {
		owners = append(owners, map[string]any{"namespace": each.Namespace, "name": each.Name, "uid": each.UID})
	}
	allocated := r.Status.Allocated
	if allocated == nil {
		allocated = corev1.ResourceList{}
	}
	return map[string]any{"written": written, "phase": r.Status.Phase, "conditions": conditions, "currentOwners": owners,
		"allocated": allocated, "requeueAfterSeconds": next.requeueAfter.Round(100 * time.Millisecond).Seconds()}, nil
}

// AnswerGC says whether a Reservation is collected.
func AnswerGC(asked LifeQuestion) (any, error) {
	ctrl, client := asked.controllerOf()
	ctrl.gcReservations()
	return map[string]any{"delete": len(client.Actions()) > 0}, nil
}

// AnswerMetrics says which gauges a Reservation has.
func AnswerMetrics(asked LifeQuestion) (any, error) {
	asked.Reservation.Name = uuid.NewString() // gauges stay
	metrics.ResetReservationPhase()
	RecordReservationPhases(asked.Reservation)
	RecordReservationResource(asked.Reservation)
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		return nil, err
	}
	phases, resources := map[string]float64{}, []map[string]any{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			labels := map[string]string{}
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			if labels["name"] != asked.Reservation.Name {
				continue
			}
			value := metric.GetGauge().GetValue()
			switch family.GetName() {
			case "scheduler_reservation_status_phase":
				phases[labels["phase"]] = value
			case "scheduler_reservation_resource":
				resources = append(resources, map[string]any{"type": labels["type"], "resource": labels["resource"], "unit": labels["unit"], "value": value})
			}
		}
	}
	return map[string]any{"phase": phases, "resources": resources}, nil
}
