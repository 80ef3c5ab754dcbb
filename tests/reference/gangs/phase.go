// in pkg/scheduler/plugins/reservation
package reservation

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/component-helpers/resource"

	apiext "github.com/koordinator-sh/koordinator/apis/extension"
	schedulingv1alpha1 "github.com/koordinator-sh/koordinator/apis/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/frameworkext/eventhandlers"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/plugins/reservation/controller"
	reservationutil "github.com/koordinator-sh/koordinator/pkg/util/reservation"
)

type phaseQuestion struct {
	Op          string                          `json:"op"`
	Reservation *schedulingv1alpha1.Reservation `json:"reservation"`
	Allocatable []corev1.ResourceName           `json:"allocatable"`
	Options     *[]corev1.ResourceName          `json:"options"`
	Message     string                          `json:"message"`
	NodeName    string                          `json:"nodeName"`
}

func init() { answering.Area("reservation-phase", phaseOf) }

func phaseOf(text json.RawMessage) (any, error) {
	var asked phaseQuestion
	if err := json.Unmarshal(text, &struct {
		Op *string `json:"op"`
	}{&asked.Op}); err != nil {
		return nil, err
	}
	switch asked.Op {
	case "route":
		return answering.Of(eventhandlers.AnswerRoute)(text)
	case "sync":
		return answering.Of(controller.AnswerSync)(text)
	case "gc":
		return answering.Of(controller.AnswerGC)(text)
	case "metrics":
		return answering.Of(controller.AnswerMetrics)(text)
	}
	if err := json.Unmarshal(text, &asked); err != nil {
		return nil, err
	}
	r := asked.Reservation
	switch asked.Op {
	case "restrictedResources":
		var options *apiext.ReservationRestrictedOptions
		if asked.Options != nil {
			options = &apiext.ReservationRestrictedOptions{Resources: *asked.Options}
		}
		return map[string]any{"names": reservationutil.GetReservationRestrictedResources(asked.Allocatable, options)}, nil
	case "reservePod":
		return reservePod(r), nil
	case "requests":
		return map[string]any{"requests": listed(reservationutil.ReservationRequests(r))}, nil
	case "validate":
		return map[string]any{"valid": reservationutil.ValidateReservation(r) == nil}, nil
	case "states":
		return map[string]any{"active": reservationutil.IsReservationActive(r), "available": reservationutil.IsReservationAvailable(r),
			"succeeded": reservationutil.IsReservationSucceeded(r), "failed": reservationutil.IsReservationFailed(r),
			"expired": reservationutil.IsReservationExpired(r)}, nil
	case "unschedulable":
		before := map[schedulingv1alpha1.ReservationConditionType]schedulingv1alpha1.ReservationCondition{}
		for _, each := range r.Status.Conditions {
			before[each.Type] = each
		}
		reservationutil.SetReservationUnschedulable(r, asked.Message)
		changed := []string{}
		for _, each := range r.Status.Conditions {
			if !each.LastProbeTime.Equal(ptrTo(before[each.Type].LastProbeTime)) {
				changed = append(changed, string(each.Type)+".lastProbeTime")
			}
			if !each.LastTransitionTime.Equal(ptrTo(before[each.Type].LastTransitionTime)) {
				changed = append(changed, string(each.Type)+".lastTransitionTime")
			}
		}
		return map[string]any{"phase": r.Status.Phase, "conditions": conditionsOf(r), "changedTimes": changed}, nil
	case "bound":
		err := reservationutil.SetReservationAvailable(r, asked.NodeName)
		return map[string]any{"phase": r.Status.Phase, "nodeName": r.Status.NodeName, "allocatable": listed(r.Status.Allocatable),
			"conditions": conditionsOf(r)}, err
	}
	return nil, fmt.Errorf("no question %s", asked.Op)
}

func ptrTo[T any](value T) *T { return &value }

func listed(found corev1.ResourceList) corev1.ResourceList {
	if found == nil {
		return corev1.ResourceList{}
	}
	return found
}

func conditionsOf(r *schedulingv1alpha1.Reservation) []map[string]any {
	found := []map[string]any{}
	for _, each := range r.Status.Conditions {
		shown := map[string]any{"type": each.Type, "status": each.Status, "reason": each.Reason}
		if each.Message != "" {
			shown["message"] = each.Message
		}
		found = append(found, shown)
	}
	return found
}

func reservePod(r *schedulingv1alpha1.Reservation) any {
	pod := reservationutil.NewReservePod(r)
	names := []string{}
	for _, each := range pod.Spec.Containers {
		names = append(names, each.Name)
	}
	return map[string]any{"name": pod.Name, "uid": pod.UID, "namespace": pod.Namespace, "labels": pod.Labels,
		"annotations": pod.Annotations, "nodeName": pod.Spec.NodeName, "schedulerName": pod.Spec.SchedulerName,
		"priority": *pod.Spec.Priority, "phase": pod.Status.Phase, "overhead": listed(pod.Spec.Overhead), "containers": names,
		"requests": listed(resourceapi.PodRequests(pod, resourceapi.PodResourcesOptions{})), "preAllocation": r.Spec.PreAllocation}
}
