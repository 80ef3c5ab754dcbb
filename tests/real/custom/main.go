// What Kubernetes makes of an expression, of a CustomResourceDefinition and of a custom resource: one question a line,
// one answer a line, both JSON.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

type question struct {
	Kind       string          `json:"kind"`
	Expression string          `json:"expression"`
	Values     json.RawMessage `json:"values"`
	Definition json.RawMessage `json:"definition"`
	Old        json.RawMessage `json:"old"`
	Object     json.RawMessage `json:"object"`
}

type answer map[string]any

func main() {
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var asked question
		if err := json.Unmarshal(line, &asked); err != nil {
			panic(err)
		}
		if err := out.Encode(asked.answered()); err != nil {
			panic(err)
		}
	}
}

// Kubernetes itself fails on some expressions.
func (q question) answered() (found answer) {
	defer func() {
		if reason := recover(); reason != nil {
			found = answer{"crashed": fmt.Sprint(reason)}
		}
	}()
	switch q.Kind {
	case "expression":
		return expression(q.Expression, q.Values)
	case "definition":
		return definition(q.Definition, q.Old)
	}
	return custom(q.Definition, q.Object, q.Old)
}

// Expressions

func expression(text string, raw json.RawMessage) answer {
	values := object(raw)
	env := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).StoredExpressionsEnv()
	options := []celgo.EnvOption{}
	for name := range values {
		options = append(options, celgo.Variable(name, celgo.DynType))
	}
	env, err := env.Extend(options...)
	if err != nil {
		panic(err)
	}
	ast, issues := env.Compile(text)
	if issues != nil && issues.Err() != nil {
		return answer{"refused": issues.Err().Error()}
	}
	program, err := env.Program(ast)
	if err != nil {
		return answer{"refused": err.Error()}
	}
	value, _, err := program.Eval(values)
	found := answer{"type": ast.OutputType().String()}
	if err != nil {
		found["failed"] = err.Error()
	} else {
		found["value"] = shown(value)
	}
	return found
}

// A value with its type, so that 1 and 1.0 differ.
func shown(value ref.Val) any {
	name := value.Type().TypeName()
	switch value := value.(type) {
	case types.Null:
		return []any{name}
	case types.Bool:
		return []any{name, bool(value)}
	case types.Int:
		return []any{name, fmt.Sprint(int64(value))}
	case types.Uint:
		return []any{name, fmt.Sprint(uint64(value))}
	case types.Double:
		return []any{name, number(float64(value))}
	case types.String:
		return []any{name, string(value)}
	case types.Bytes:
		return []any{name, fmt.Sprintf("%x", []byte(value))}
	case types.Timestamp, types.Duration:
		return []any{name, string(value.ConvertToType(types.StringType).(types.String))}
	case *types.Optional:
		if !value.HasValue() {
			return []any{name}
		}
		return []any{name, shown(value.GetValue())}
	case traits.Lister:
		items := []any{}
		for each := value.Iterator(); each.HasNext() == types.True; {
			items = append(items, shown(each.Next()))
		}
		return []any{"list", items}
	case traits.Mapper:
		items := []any{}
		for each := value.Iterator(); each.HasNext() == types.True; {
			key := each.Next()
			items = append(items, []any{shown(key), shown(value.Get(key))})
		}
		return []any{"map", items}
	case *types.Type:
		return []any{"type", value.TypeName()}
	case apiservercel.Quantity:
		amount := value.Quantity.DeepCopy()
		amount.Add(resource.Quantity{}) // it may remember how it was written
		return []any{name, amount.String()}
	case *apiservercel.Quantity:
		return shown(*value)
	case apiservercel.Semver:
		return []any{name, value.Version.String()}
	case apiservercel.IP:
		return []any{name, value.Addr.String()}
	case apiservercel.CIDR:
		return []any{name, value.Prefix.String()}
	}
	return []any{name, ""}
}

func number(value float64) string {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return fmt.Sprint(value)
	}
	return fmt.Sprintf("%.12e", value)
}

// Definitions

func internal(raw json.RawMessage) (*apiextensions.CustomResourceDefinition, error) {
	var external v1.CustomResourceDefinition
	if err := kjson.Unmarshal(raw, &external); err != nil {
		return nil, err
	}
	v1.SetDefaults_CustomResourceDefinition(&external)
	v1.SetDefaults_CustomResourceDefinitionSpec(&external.Spec)
	var found apiextensions.CustomResourceDefinition
	err := v1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&external, &found, nil)
	if err != nil {
		return nil, err
	}
	if len(found.Status.StoredVersions) == 0 {
		for _, each := range found.Spec.Versions {
			if each.Storage {
				found.Status.StoredVersions = append(found.Status.StoredVersions, each.Name)
			}
		}
	}
	return &found, nil
}

func definition(raw, before json.RawMessage) answer {
	found, err := internal(raw)
	if err != nil {
		return answer{"unreadable": err.Error()}
	}
	if before == nil {
		return answer{"causes": causes(validation.ValidateCustomResourceDefinition(context.Background(), found))}
	}
	old, err := internal(before)
	if err != nil {
		return answer{"unreadable": err.Error()}
	}
	found.ResourceVersion, old.ResourceVersion = "1", "1"
	return answer{"causes": causes(validation.ValidateCustomResourceDefinitionUpdate(context.Background(), found, old))}
}

func causes(found field.ErrorList) []any {
	told := []any{}
	for _, each := range found {
		told = append(told, []any{string(each.Type), each.Field, each.ErrorBody()})
	}
	return told
}

// Objects, by the first version of their definition

func custom(rawDefinition, raw, before json.RawMessage) answer {
	crd, err := internal(rawDefinition)
	if err != nil {
		return answer{"unreadable": err.Error()}
	}
	version := crd.Spec.Versions[0]
	props := version.Schema
	if props == nil {
		props = crd.Spec.Validation
	}
	structural, err := structuralschema.NewStructural(props.OpenAPIV3Schema)
	if err != nil {
		return answer{"unreadable": err.Error()}
	}
	structural = structural.DeepCopy()
	if err := defaulting.PruneDefaults(structural); err != nil {
		panic(err)
	}
	validator, _, err := schemavalidation.NewSchemaValidator(props.OpenAPIV3Schema)
	if err != nil {
		panic(err)
	}
	kind := schema.GroupVersionKind{Group: crd.Spec.Group, Version: version.Name, Kind: crd.Spec.Names.Kind}
	subresources, err := apiextensions.GetSubresourcesForVersion(crd, version.Name)
	if err != nil {
		panic(err)
	}
	var status *apiextensions.CustomResourceSubresourceStatus
	var scale *apiextensions.CustomResourceSubresourceScale
	if subresources != nil {
		status, scale = subresources.Status, subresources.Scale
	}
	strategy := customresource.NewStrategy(
		nil, crd.Spec.Scope == apiextensions.NamespaceScoped, kind, validator, nil, structural, status, scale, nil,
	)
	made := &unstructured.Unstructured{Object: object(raw)}
	unknown, err := read(made, structural)
	if err != nil {
		return answer{"unreadable": err.Error()}
	}
	found := answer{"unknown": unknown}
	if before == nil {
		strategy.PrepareForCreate(context.Background(), made)
		found["causes"] = causes(strategy.Validate(context.Background(), made))
	} else {
		old := &unstructured.Unstructured{Object: object(before)}
		if _, err := read(old, structural); err != nil {
			return answer{"unreadable": err.Error()}
		}
		made.SetResourceVersion("1")
		old.SetResourceVersion("1")
		strategy.PrepareForUpdate(context.Background(), made, old)
		found["causes"] = causes(strategy.ValidateUpdate(context.Background(), made, old))
	}
	delete(made.Object, "metadata")
	found["object"] = made.Object
	return found
}

func read(made *unstructured.Unstructured, schema *structuralschema.Structural) ([]string, error) {
	meta, _, unknown, err := objectmeta.GetObjectMetaWithOptions(
		made.Object, objectmeta.ObjectMetaOptions{ReturnUnknownFieldPaths: true},
	)
	if err != nil {
		return nil, err
	}
	paths := pruning.PruneWithOptions(
		made.Object, schema, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true},
	)
	defaulting.PruneNonNullableNullsWithoutDefaults(made.Object, schema)
	coerced, more := objectmeta.CoerceWithOptions(
		nil, made.Object, schema, false, objectmeta.CoerceOptions{ReturnUnknownFieldPaths: true},
	)
	if coerced != nil {
		return nil, coerced
	}
	if err := objectmeta.SetObjectMeta(made.Object, meta); err != nil {
		return nil, err
	}
	defaulting.Default(made.Object, schema)
	return append(append(append([]string{}, unknown...), paths...), more...), nil
}

func object(raw json.RawMessage) map[string]any {
	found := map[string]any{}
	if len(raw) > 0 {
		if err := kjson.Unmarshal(raw, &found); err != nil {
			panic(err)
		}
	}
	return found
}
