// in pkg/scheduler/frameworkext/eventhandlers
package eventhandlers

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwktype "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/profile"

	schedulingv1alpha1 "github.com/koordinator-sh/koordinator/apis/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/frameworkext"
	reservationutil "github.com/koordinator-sh/koordinator/pkg/util/reservation"
)

func init() {
	answering.Area("reservation-event-message", answering.Of(func(asked struct {
		Message string `json:"message"`
	}) (any, error) {
		text, reported := generatePodEventOnReservationLevel(asked.Message)
		if !reported {
			return map[string]any{"event": nil}, nil
		}
		return map[string]any{"event": text}, nil
	}))
}

// AnswerEvent says what a pod's event tells about reservations.
func AnswerEvent(message string) (any, error) {
	text, reported := generatePodEventOnReservationLevel(message)
	if !reported {
		return map[string]any{"report": false}, nil
	}
	return map[string]any{"report": true, "message": text}, nil
}

// RouteQuestion is an event of a Reservation.
type RouteQuestion struct {
	Event   string                          `json:"event"`
	Old     *schedulingv1alpha1.Reservation `json:"old"`
	New     *schedulingv1alpha1.Reservation `json:"new"`
	Mine    bool                            `json:"responsible"`
	OldMine *bool                           `json:"oldResponsible"`
	NewMine *bool                           `json:"newResponsible"`
	Assumed bool                            `json:"assumed"`
}

// deeds notes what is done to the scheduler's cache and queue.
type deeds struct {
	frameworkext.Scheduler
	frameworkext.SchedulerCache
	frameworkext.SchedulingQueue
	assumed bool
	done    []string
}

// queueOf is the same as a queue: both have methods of one name.
type queueOf struct {
	frameworkext.SchedulingQueue
	*deeds
}

func (d *deeds) note(deed string) { d.done = append(d.done, deed) }

func (d *deeds) GetCache() frameworkext.SchedulerCache            { return d }
func (d *deeds) GetSchedulingQueue() frameworkext.SchedulingQueue { return queueOf{deeds: d} }
func (d *deeds) AddPod(klog.Logger, *corev1.Pod) error            { d.note("cacheAdd"); return nil }
func (d *deeds) UpdatePod(klog.Logger, *corev1.Pod, *corev1.Pod) error {
	d.note("cacheUpdate")
	return nil
}
func (d *deeds) RemovePod(klog.Logger, *corev1.Pod) error      { d.note("cacheDelete"); return nil }
func (d *deeds) GetPod(pod *corev1.Pod) (*corev1.Pod, error)   { return pod, nil }
func (d *deeds) IsAssumedPod(*corev1.Pod) (bool, error)        { return d.assumed, nil }
func (q queueOf) Add(klog.Logger, *corev1.Pod)                 { q.note("queueAdd") }
func (q queueOf) Update(klog.Logger, *corev1.Pod, *corev1.Pod) { q.note("queueUpdate") }
func (q queueOf) Delete(*corev1.Pod)                           { q.note("queueDelete") }
func (q queueOf) AssignedPodAdded(klog.Logger, *corev1.Pod)    {}
func (q queueOf) Done(types.UID)                               {}
func (q queueOf) Activate(klog.Logger, map[string]*corev1.Pod) {}
func (q queueOf) SchedulingCycle() int64                       { return 0 }
func (q queueOf) AddUnschedulableIfNotPresent(klog.Logger, *framework.QueuedPodInfo, int64) error {
	return nil
}
func (q queueOf) AssignedPodUpdated(klog.Logger, *corev1.Pod, *corev1.Pod, fwktype.ClusterEvent) {}
func (q queueOf) MoveAllToActiveOrBackoffQueue(klog.Logger, fwktype.ClusterEvent, interface{}, interface{}, frameworkext.PreEnqueueCheck) {
}

type known struct{ frameworkext.ReservationCache }

func (known) DeleteReservation(r *schedulingv1alpha1.Reservation) *frameworkext.ReservationInfo {
	return frameworkext.NewReservationInfo(r)
}

type waits struct{ framework.Framework }

func (waits) RejectWaitingPod(types.UID) bool { return false }

// AnswerRoute says what is done for an event of a Reservation.
func AnswerRoute(asked RouteQuestion) (any, error) {
	frameworkext.SetReservationCache(known{}, "")
	done := &deeds{assumed: asked.Assumed}
	sched := &scheduler.Scheduler{Profiles: profile.Map{"mine": waits{}}}
	for _, each := range []struct {
		of   *schedulingv1alpha1.Reservation
		mine *bool
	}{{asked.Old, asked.OldMine}, {asked.New, asked.NewMine}} {
		if each.of == nil {
			continue
		}
		if each.of.Spec.Template == nil {
			if reservationutil.ValidateReservation(each.of) == nil {
				return nil, errors.New("a reservation without a template")
			}
			continue
		}
		each.of.Spec.Template.Spec.SchedulerName = "other"
		if each.mine == nil && asked.Mine || each.mine != nil && *each.mine {
			each.of.Spec.Template.Spec.SchedulerName = "mine"
		}
	}
	handlers := reservationEventHandlers(sched, done)
	switch asked.Event {
	case "add":
		handlers.OnAdd(asked.New, false)
	case "update":
		handlers.OnUpdate(asked.Old, asked.New)
	default:
		gone := asked.Old
		if gone == nil {
			gone = asked.New
		}
		handlers.OnDelete(gone)
	}
	if done.done == nil {
		done.done = []string{}
	}
	return map[string]any{"actions": done.done}, nil
}
