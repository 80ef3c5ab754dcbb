// in pkg/webhook/pod/validating
package validating

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/koordinator-sh/koordinator/apis/extension"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/util/fieldindex"
)

func init() { answering.Area("pod-validate", answering.Of(validated)) }

type answer = map[string]any

type podQuestion struct {
	Op            string            `json:"op"`
	Operation     string            `json:"operation"`
	OldPod        json.RawMessage   `json:"oldPod"`
	NewPod        json.RawMessage   `json:"newPod"`
	SkipsPriority bool              `json:"skipPriorityGate"`
	Annotations   map[string]string `json:"annotations"`
	Pod           json.RawMessage   `json:"pod"`
	Gate          bool              `json:"gate"`
	ConfigMapData map[string]string `json:"configMapData"`
}

func validated(asked podQuestion) (any, error) {
	gates := map[string]bool{
		"ColocationProfileSkipValidatingPriority": asked.SkipsPriority,
		"ValidatePodDeviceResource":               asked.Op == "device" && asked.Gate,
		"EnablePodEnhancedValidator":              asked.Op == "enhanced",
	}
	var on []string
	for name, wanted := range gates {
		if wanted {
			on = append(on, name)
		}
	}
	if err := fieldindex.Gates(on...); err != nil {
		return nil, err
	}
	var objects []client.Object
	if asked.ConfigMapData != nil {
		objects = append(objects, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: PodEnhancedValidatorConfigNamespace, Name: PodEnhancedValidatorConfigName,
			},
			Data: asked.ConfigMapData,
		})
	}
	cluster := fieldindex.Cluster(objects...)
	handler := &PodValidatingHandler{Client: cluster, Decoder: admission.NewDecoder(cluster.Scheme())}
	request := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Operation: admissionv1.Operation(asked.Operation), Object: runtime.RawExtension{Raw: asked.Pod},
	}}
	if request.Operation == "" {
		request.Operation = admissionv1.Create
	}
	var allowed bool
	var err error
	switch asked.Op {
	case "colocation":
		request.Object.Raw, request.OldObject.Raw = asked.NewPod, asked.OldPod
		allowed, _, err = handler.clusterColocationProfileValidatingPod(context.TODO(), request)
		rules, unknown := violations(err)
		return answer{"allowed": allowed, "violations": rules}, unknown
	case "annotations":
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: asked.Annotations}}
		request.Object.Raw, _ = json.Marshal(pod)
		request.OldObject = request.Object
		allowed, _, err = handler.clusterReservationValidatingPod(context.TODO(), request)
	case "device":
		request.OldObject = request.Object
		allowed, _, err = handler.deviceResourceValidatingPod(context.TODO(), request)
	case "enhanced":
		handler.PodEnhancedValidator = NewPodEnhancedValidator(cluster)
		handler.PodEnhancedValidator.startOnce.Do(func() { err = handler.PodEnhancedValidator.syncConfig() })
		if err != nil {
			return nil, err
		}
		_, err = handler.podEnhancedValidate(context.TODO(), request)
		return answer{"allowed": err == nil}, nil
	default:
		return nil, fmt.Errorf("nobody answers %s", asked.Op)
	}
	if _, isVerdict := err.(utilerrors.Aggregate); err != nil && !isVerdict {
		return nil, err
	}
	return answer{"allowed": allowed}, nil
}

func violations(err error) ([]string, error) {
	found := []string{}
	if err == nil {
		return found, nil
	}
	all, isVerdict := err.(utilerrors.Aggregate)
	if !isVerdict {
		return nil, err
	}
	for _, each := range all.Errors() {
		problem, isOne := each.(*field.Error)
		if !isOne {
			return nil, each
		}
		found = append(found, rule(problem))
	}
	return found, nil
}

func rule(problem *field.Error) string {
	switch isRequired := problem.Type == field.ErrorTypeRequired; {
	case problem.Field == "spec.priority":
		return "priority-class-immutable"
	case strings.Contains(problem.Field, extension.LabelPodPriority):
		return "sub-priority-immutable"
	case strings.Contains(problem.Field, extension.LabelPodQoS) && isRequired:
		return "batch-needs-be"
	case strings.Contains(problem.Field, extension.LabelPodQoS):
		return "qos-immutable"
	case problem.Type == field.ErrorTypeForbidden && strings.Contains(problem.Detail, "=BE"):
		return "be-priority"
	case problem.Type == field.ErrorTypeForbidden:
		return "lsr-priority"
	case isRequired:
		return "cpu-required"
	}
	return "cpu-not-integer"
}
