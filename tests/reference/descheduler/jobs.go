// in pkg/descheduler/controllers/migration
package migration

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	gocache "github.com/patrickmn/go-cache"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	sev1alpha1 "github.com/koordinator-sh/koordinator/apis/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/apis/config"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/controllers/migration/reservation"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/test"
)

func init() { answering.Area("descheduler-migration-state", test.Of(stepped)) }

type migrationWorld struct {
	Pods             []*corev1.Pod           `json:"pods"`
	Reservation      *sev1alpha1.Reservation `json:"reservation"`
	EvictionError    string                  `json:"eviction_error"`
	ReservationError string                  `json:"create_reservation_error"`
	LimiterBlocked   bool                    `json:"limiter_blocked"`

	job     *sev1alpha1.PodMigrationJob
	actions []string
	events  []string
}

type migrationQuestion struct {
	Args  json.RawMessage             `json:"args"`
	UID   types.UID                   `json:"reconciler_uid"`
	Job   *sev1alpha1.PodMigrationJob `json:"job"`
	Steps []struct {
		Now     float64         `json:"now"`
		World   migrationWorld  `json:"world"`
		SetSpec json.RawMessage `json:"set_spec"`
	} `json:"steps"`
}

func (w *migrationWorld) did(action string) { w.actions = append(w.actions, action) }

func (w *migrationWorld) GetReservationType() client.Object { return &sev1alpha1.Reservation{} }

func (w *migrationWorld) Preemption() reservation.Preemption { return nil }

func (w *migrationWorld) CreateReservation(_ context.Context, job *sev1alpha1.PodMigrationJob) (reservation.Object, error) {
	made := &sev1alpha1.Reservation{ObjectMeta: job.Spec.ReservationOptions.Template.ObjectMeta}
	w.did("create-reservation:" + made.Name)
	if w.ReservationError != "" {
		return nil, errors.New(w.ReservationError)
	}
	return reservation.NewReservation(made), nil
}

func (w *migrationWorld) GetReservation(_ context.Context, ref *corev1.ObjectReference) (reservation.Object, error) {
	if w.Reservation == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "reservations"}, ref.Name)
	}
	return reservation.NewReservation(w.Reservation.DeepCopy()), nil
}

func (w *migrationWorld) DeleteReservation(ctx context.Context, ref *corev1.ObjectReference) error {
	w.did("delete-reservation:" + ref.Name)
	_, err := w.GetReservation(ctx, ref)
	return err
}

func (w *migrationWorld) Evict(_ context.Context, _ *sev1alpha1.PodMigrationJob, pod *corev1.Pod) error {
	w.did("evict:" + test.Key(pod))
	if w.EvictionError != "" {
		return errors.New(w.EvictionError)
	}
	return nil
}

func (w *migrationWorld) Eventf(_, _ runtime.Object, kind, reason, _, _ string, _ ...any) {
	w.events = append(w.events, kind+":"+reason)
}

// update keeps what the API server would.
func (w *migrationWorld) update(ctx context.Context, api client.WithWatch, object client.Object, options ...client.UpdateOption) error {
	if held, ok := object.(*sev1alpha1.Reservation); ok {
		w.did("set-reservation-order:" + held.Name)
		return nil
	}
	return api.Update(ctx, object, options...)
}

func (w *migrationWorld) client() client.Client {
	scheme := runtime.NewScheme()
	sev1alpha1.AddToScheme(scheme)
	clientgoscheme.AddToScheme(scheme)
	builder := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&sev1alpha1.PodMigrationJob{})
	builder.WithObjects(w.job.DeepCopy()).WithInterceptorFuncs(interceptor.Funcs{Update: w.update})
	for _, pod := range w.Pods {
		builder.WithObjects(pod.DeepCopy())
	}
	return builder.Build()
}

func (w *migrationWorld) limit(r *Reconciler) {
	r.limiterMap, r.limiterCacheMap = nil, nil
	if !w.LimiterBlocked {
		return
	}
	kind, limiters := config.MigrationLimitObjectNamespace, map[string]*rate.Limiter{}
	for _, pod := range w.Pods {
		limiters[pod.Namespace] = rate.NewLimiter(0, 0)
	}
	r.args.ObjectLimiters = config.ObjectLimiterMap{kind: {Duration: metav1.Duration{Duration: time.Second}}}
	r.limiterMap = map[config.MigrationLimitObjectType]map[string]*rate.Limiter{kind: limiters}
	r.limiterCacheMap = map[config.MigrationLimitObjectType]*gocache.Cache{kind: gocache.New(0, 0)}
}

func stepped(asked migrationQuestion) (any, error) {
	args, err := test.ArgsOf[config.MigrationControllerArgs](Name, asked.Args)
	if err != nil {
		return nil, err
	}
	job, steps := asked.Job, []any{}
	for _, step := range asked.Steps {
		if step.SetSpec != nil {
			if err := json.Unmarshal(step.SetSpec, &job.Spec); err != nil {
				return nil, err
			}
		}
		world := &step.World
		world.job, world.actions, world.events = job, []string{}, []string{}
		job.ResourceVersion = ""
		reconciler := &Reconciler{
			Client: world.client(), args: args, eventRecorder: world, reservationInterpreter: world, evictorInterpreter: world,
			assumedCache: newAssumedCache(), clock: clocktesting.NewFakeClock(test.At(step.Now)), reconcilerUID: asked.UID,
		}
		world.limit(reconciler)
		result, failed := reconciler.Reconcile(context.Background(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(job)})
		job = &sev1alpha1.PodMigrationJob{}
		if err := reconciler.Get(context.Background(), client.ObjectKeyFromObject(asked.Job), job); err != nil {
			return nil, err
		}
		steps = append(steps, world.answer(&job.Status, result, failed))
	}
	return map[string]any{"steps": steps}, nil
}

func (w *migrationWorld) answer(status *sev1alpha1.PodMigrationJobStatus, result reconcile.Result, failed error) map[string]any {
	conditions, newPod := map[string]any{}, ""
	for _, each := range status.Conditions {
		conditions[string(each.Type)] = map[string]string{"status": string(each.Status), "reason": each.Reason}
	}
	if status.PodRef != nil {
		newPod = status.PodRef.Name
	}
	var requeue any
	if result.RequeueAfter > 0 {
		requeue = result.RequeueAfter.Seconds()
	}
	return map[string]any{
		"phase": status.Phase, "status": status.Status, "reason": status.Reason, "message": status.Message,
		"node_name": status.NodeName, "new_pod": newPod, "conditions": conditions, "actions": w.actions, "events": w.events,
		"requeue_after_s": requeue, "error": failed != nil,
	}
}
