// A controller as people write them, against whatever cluster KUBECONFIG names: controller-runtime with its default
// options, so that built-in kinds travel in protobuf. Prints a line for each step that went well; ends with 1 otherwise.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const (
	namespace = "default"
	name      = "typed"
	lease     = "typed-leader"
	deadline  = 60 * time.Second
)

// follower copies a label of the Deployment into an annotation, as soon as its watch shows it.
type follower struct {
	client.Client
	seen atomic.Int64
}

func (f *follower) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	f.seen.Add(1)
	var deployment appsv1.Deployment
	if err := f.Get(ctx, request.NamespacedName, &deployment); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if deployment.Name != name || deployment.Annotations["copied"] == deployment.Labels["step"] {
		return ctrl.Result{}, nil
	}
	before := deployment.DeepCopy()
	deployment.Annotations = map[string]string{"copied": deployment.Labels["step"]}
	return ctrl.Result{}, f.Patch(ctx, &deployment, client.MergeFrom(before))
}

func main() {
	log.SetLogger(zap.New(zap.WriteTo(os.Stderr)))
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "failed:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	mgr, err := ctrl.NewManager(ctrl.GetConfigOrDie(), manager.Options{
		LeaderElection:                true,
		LeaderElectionID:              lease,
		LeaderElectionNamespace:       namespace,
		LeaderElectionReleaseOnCancel: true,
		Metrics:                       metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		return err
	}
	controller := &follower{Client: mgr.GetClient()}
	if err := ctrl.NewControllerManagedBy(mgr).For(&appsv1.Deployment{}, builder.WithPredicates()).Complete(controller); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	select {
	case <-mgr.Elected():
	case err := <-ended:
		return fmt.Errorf("manager: %w", err)
	case <-ctx.Done():
		return errors.New("nobody was elected")
	}
	fmt.Println("elected")
	steps := []struct {
		name string
		do   func(context.Context, client.Client) error
	}{
		{"lease", checkLease},
		{"create-or-update", createOrUpdate},
		{"watched", watched},
		{"status", updateStatus},
		{"scale", scale},
		{"server-side-apply", apply},
		{"node", updateNode},
		{"pods", checkPods},
		{"evict", evict},
		{"errors", checkErrors},
		{"token", requestToken},
		{"delete", remove},
	}
	direct, err := client.New(mgr.GetConfig(), client.Options{})
	if err != nil {
		return err
	}
	for _, step := range steps {
		if err := step.do(ctx, direct); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Println(step.name)
	}
	if controller.seen.Load() == 0 {
		return errors.New("the controller saw nothing")
	}
	stop()
	return <-ended
}

func checkLease(ctx context.Context, c client.Client) error {
	var found coordinationv1.Lease
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: lease}, &found); err != nil {
		return err
	}
	if found.Spec.HolderIdentity == nil || found.Spec.RenewTime == nil || found.Spec.RenewTime.Nanosecond() == 0 {
		return fmt.Errorf("the lease says %+v", found.Spec)
	}
	return nil
}

func deployment() *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func createOrUpdate(ctx context.Context, c client.Client) error {
	var done []controllerutil.OperationResult
	for _, replicas := range []int32{1, 2, 2} {
		object := deployment()
		result, err := controllerutil.CreateOrUpdate(ctx, c, object, func() error {
			labels := map[string]string{"app": name}
			object.Labels = map[string]string{"step": fmt.Sprint(replicas)}
			object.Spec.Replicas = &replicas
			object.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
			object.Spec.Template.Labels = labels
			if len(object.Spec.Template.Spec.Containers) == 0 {
				object.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "web:1"}}
			}
			object.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("100m"),
			}
			return nil
		})
		if err != nil {
			return err
		}
		done = append(done, result)
	}
	if done[0] != controllerutil.OperationResultCreated || done[1] != controllerutil.OperationResultUpdated {
		return fmt.Errorf("results %v", done)
	}
	return nil
}

func eventually(ctx context.Context, holds func() (bool, error)) error {
	for {
		done, err := holds()
		if err != nil || done {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.New("it did not come about in time")
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func watched(ctx context.Context, c client.Client) error {
	return eventually(ctx, func() (bool, error) {
		found := deployment()
		err := c.Get(ctx, client.ObjectKeyFromObject(found), found)
		return found.Annotations["copied"] == "2", err
	})
}

func updateStatus(ctx context.Context, c client.Client) error {
	var pod corev1.PodList
	if err := eventually(ctx, func() (bool, error) {
		err := c.List(ctx, &pod, client.InNamespace(namespace), client.MatchingLabels{"app": name})
		return len(pod.Items) == 2, err
	}); err != nil {
		return err
	}
	return eventually(ctx, func() (bool, error) {
		first := pod.Items[0]
		if err := c.Get(ctx, client.ObjectKeyFromObject(&first), &first); err != nil {
			return false, err
		}
		first.Status.Conditions = append(first.Status.Conditions, corev1.PodCondition{
			Type: "example.com/typed", Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
		})
		err := c.Status().Update(ctx, &first)
		return err == nil, ignoreConflict(err)
	})
}

func ignoreConflict(err error) error {
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}

func scale(ctx context.Context, c client.Client) error {
	return eventually(ctx, func() (bool, error) {
		found := deployment()
		if err := c.Get(ctx, client.ObjectKeyFromObject(found), found); err != nil {
			return false, err
		}
		before := found.DeepCopy()
		var replicas int32 = 3
		found.Spec.Replicas = &replicas
		return true, c.Patch(ctx, found, client.StrategicMergeFrom(before))
	})
}

func apply(ctx context.Context, c client.Client) error {
	object := &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Data:       map[string]string{"a": "1"},
	}
	//nolint:staticcheck // the older way to apply is what most controllers still use
	if err := c.Patch(ctx, object, client.Apply, client.FieldOwner("typed"), client.ForceOwnership); err != nil {
		return err
	}
	if len(object.ManagedFields) != 1 || object.ManagedFields[0].FieldsV1 == nil {
		return fmt.Errorf("managed fields %v", object.ManagedFields)
	}
	return c.Delete(ctx, object)
}

func updateNode(ctx context.Context, c client.Client) error {
	return eventually(ctx, func() (bool, error) {
		var nodes corev1.NodeList
		if err := c.List(ctx, &nodes); err != nil {
			return false, err
		}
		if len(nodes.Items) == 0 {
			return false, errors.New("the cluster has no node")
		}
		node := nodes.Items[0]
		if node.Labels == nil {
			node.Labels = map[string]string{}
		}
		node.Labels["example.com/typed"] = "true"
		if err := c.Update(ctx, &node); err != nil {
			return false, ignoreConflict(err)
		}
		if node.Status.Allocatable.Cpu().IsZero() {
			return false, fmt.Errorf("node %s: no allocatable CPU", node.Name)
		}
		return true, nil
	})
}

func checkPods(ctx context.Context, c client.Client) error {
	return eventually(ctx, func() (bool, error) {
		var pods corev1.PodList
		err := c.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels{"app": name})
		for _, pod := range pods.Items {
			if pod.Spec.Containers[0].Resources.Requests.Cpu().MilliValue() != 100 {
				return false, fmt.Errorf("pod %s: %v", pod.Name, pod.Spec.Containers[0].Resources)
			}
		}
		return len(pods.Items) == 3, err
	})
}

func evict(ctx context.Context, c client.Client) error {
	var pods corev1.PodList
	if err := c.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels{"app": name}); err != nil {
		return err
	}
	pod := &pods.Items[0]
	return c.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{})
}

func checkErrors(ctx context.Context, c client.Client) error {
	err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "nobody"}, &corev1.Pod{})
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return fmt.Errorf("not found: %v", err)
	}
	if details := status.Status().Details; details.Kind != "pods" || details.Name != "nobody" {
		return fmt.Errorf("details %v", details)
	}
	empty := deployment()
	empty.Name = "empty"
	if err := c.Create(ctx, empty); !apierrors.IsInvalid(err) {
		return fmt.Errorf("invalid: %v", err)
	}
	again := deployment()
	if err := c.Get(ctx, client.ObjectKeyFromObject(again), again); err != nil {
		return err
	}
	again.ResourceVersion = ""
	if err := c.Create(ctx, again); !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("already exists: %v", err)
	}
	return nil
}

func requestToken(ctx context.Context, c client.Client) error {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}}
	request := &authenticationv1.TokenRequest{}
	if err := c.SubResource("token").Create(ctx, account, request); err != nil {
		return err
	}
	if request.Status.Token == "" || request.Status.ExpirationTimestamp.Before(&metav1.Time{Time: time.Now()}) {
		return fmt.Errorf("the token expires at %v", request.Status.ExpirationTimestamp)
	}
	review := &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Resource: "pods"},
		},
	}
	if err := c.Create(ctx, review); err != nil {
		return err
	}
	if !review.Status.Allowed {
		return fmt.Errorf("not allowed: %s", review.Status.Reason)
	}
	return nil
}

func remove(ctx context.Context, c client.Client) error {
	found := deployment()
	if err := c.Delete(ctx, found, client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
		return err
	}
	return eventually(ctx, func() (bool, error) {
		err := c.Get(ctx, client.ObjectKeyFromObject(found), deployment())
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
}
