// Prints the facts that the protobuf codec of the local API server needs about the messages of Kubernetes' API:
// per message the number, JSON name and type of each field, as the struct tags of the Go types have them.
// The format is described in src/koordinator/local/apiserver/protobuf/facts.py.
//
//	go run . > ../../src/koordinator/local/apiserver/protobuf/messages.txt
package main

import (
	"bufio"
	"fmt"
	"os"
	"reflect"
	"sort"
	"strconv"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	metrics "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// Kinds that a server of ours has in JSON or not at all.
var served = map[string]bool{
	"v1": true, "apps/v1": true, "batch/v1": true, "policy/v1": true, "autoscaling/v1": true, "autoscaling/v2": true,
	"networking.k8s.io/v1": true, "rbac.authorization.k8s.io/v1": true, "storage.k8s.io/v1": true,
	"scheduling.k8s.io/v1": true, "coordination.k8s.io/v1": true, "discovery.k8s.io/v1": true, "events.k8s.io/v1": true,
	"node.k8s.io/v1": true, "resource.k8s.io/v1": true, "resource.k8s.io/v1alpha3": true, "admissionregistration.k8s.io/v1": true,
	"certificates.k8s.io/v1": true, "authentication.k8s.io/v1": true, "authorization.k8s.io/v1": true,
	"apiextensions.k8s.io/v1": true, "apiregistration.k8s.io/v1": true, "metrics.k8s.io/v1beta1": true,
	"meta.k8s.io/v1": true,
}

// Types whose message is not made of their fields, by the name of their package and their own.
var special = map[string]string{
	"meta/v1.Time": "time", "meta/v1.MicroTime": "microtime", "meta/v1.Duration": "duration",
	"meta/v1.FieldsV1": "json", "resource.Quantity": "quantity", "intstr.IntOrString": "intorstring",
	"runtime.RawExtension": "json", "apiextensions/v1.JSON": "json",
	"apiextensions/v1.JSONSchemaPropsOrBool":        "schemaorbool",
	"apiextensions/v1.JSONSchemaPropsOrArray":       "schemaorarray",
	"apiextensions/v1.JSONSchemaPropsOrStringArray": "schemaorstrings",
}

// Named lists that are messages with one field `items`.
var listMessages = map[string]bool{"ExtraValue": true, "Verbs": true}

type table struct {
	lines map[string]string
	todo  []reflect.Type
}

func main() {
	for _, add := range []func(*runtime.Scheme) error{
		apiextensions.AddToScheme, apiregistration.AddToScheme, metrics.AddToScheme,
	} {
		if err := add(scheme.Scheme); err != nil {
			panic(err)
		}
	}
	found := &table{lines: map[string]string{}}
	kinds := map[string][]string{}
	for gvk, kind := range scheme.Scheme.AllKnownTypes() {
		if isServed(gvk) {
			folder, _, _ := strings.Cut(found.name(kind), ".")
			key := gvk.GroupVersion().String() + " " + folder
			kinds[key] = append(kinds[key], gvk.Kind)
		}
	}
	for _, kind := range []any{metav1.PartialObjectMetadata{}, metav1.PartialObjectMetadataList{}} {
		of := reflect.TypeOf(kind)
		found.name(of)
		key := "meta.k8s.io/v1 meta/v1"
		kinds[key] = append(kinds[key], of.Name())
	}
	found.name(reflect.TypeOf(metav1.WatchEvent{}))
	for len(found.todo) > 0 {
		next := found.todo[0]
		found.todo = found.todo[1:]
		found.lines[short(next)] = found.fields(next)
	}
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	fmt.Fprintln(out, "# Made by tools/protobuf_facts from the struct tags of k8s.io/api v0.35.4 and its neighbours.")
	for _, version := range sorted(kinds) {
		sort.Strings(kinds[version])
		fmt.Fprintf(out, "= %s %s\n", version, strings.Join(kinds[version], " "))
	}
	section := ""
	for _, name := range sorted(found.lines) {
		folder, message, _ := strings.Cut(name, ".")
		if folder != section {
			section = folder
			fmt.Fprintf(out, "[%s]\n", section)
		}
		fmt.Fprintf(out, "%s%s\n", message, strings.ReplaceAll(found.lines[name], section+".", ""))
	}
}

func isServed(gvk schema.GroupVersionKind) bool {
	if strings.HasSuffix(gvk.Kind, "Options") || gvk.Kind == "WatchEvent" {
		return gvk.Group == "" && gvk.Version == "v1" && gvk.Kind == "DeleteOptions"
	}
	return served[gvk.GroupVersion().String()]
}

// name of a type's message, whose fields are listed later if they are not yet.
func (found *table) name(of reflect.Type) string {
	name := short(of)
	if _, known := found.lines[name]; !known {
		found.lines[name] = ""
		found.todo = append(found.todo, of)
	}
	return name
}

// flagOf a field: `*` where absence and zero differ, `!` where JSON shows a zero, too, and nothing for all others.
func flagOf(of reflect.Type, options []string) string {
	if of.Kind() == reflect.Pointer {
		return "*"
	}
	for _, option := range options {
		if option == "omitzero" || option == "omitempty" && of.Kind() != reflect.Struct {
			return ""
		}
	}
	if of.Kind() == reflect.Slice || of.Kind() == reflect.Map || special[short(of)] == "time" {
		return ""
	}
	return "!"
}

// fields of a message: ` NUMBER:NAME:TYPE` and the flag.
func (found *table) fields(of reflect.Type) string {
	line := ""
	for i := 0; i < of.NumField(); i++ {
		field := of.Field(i)
		tag := strings.Split(field.Tag.Get("protobuf"), ",")
		if len(tag) < 2 || tag[0] == "-" {
			continue
		}
		if _, err := strconv.Atoi(tag[1]); err != nil {
			panic(of.Name() + "." + field.Name + ": " + tag[1])
		}
		words := strings.Split(field.Tag.Get("json"), ",")
		name, flag := words[0], flagOf(field.Type, words[1:])
		if name == "" {
			name = "@"
		}
		line += fmt.Sprintf(" %s:%s:%s", tag[1], name, found.typeOf(field.Type)) + flag
	}
	return line
}

func (found *table) typeOf(of reflect.Type) string {
	if word, known := special[short(of)]; known {
		return word
	}
	switch of.Kind() {
	case reflect.Pointer:
		return found.typeOf(of.Elem())
	case reflect.String:
		return "s"
	case reflect.Bool:
		return "b"
	case reflect.Int32, reflect.Int64, reflect.Int:
		return "i"
	case reflect.Float64:
		return "d"
	case reflect.Struct:
		return found.name(of)
	case reflect.Map:
		return "{" + found.typeOf(of.Elem()) + "}"
	case reflect.Slice:
		if of.Elem().Kind() == reflect.Uint8 {
			return "y"
		}
		if listMessages[of.Name()] {
			return "strings"
		}
		return "[" + found.typeOf(of.Elem()) + "]"
	}
	panic("no word for " + of.String())
}

// short is `core/v1.Pod` for k8s.io/api/core/v1.Pod.
func short(of reflect.Type) string {
	parts := strings.Split(of.PkgPath(), "/")
	last := parts[len(parts)-1]
	if len(parts) > 1 && strings.HasPrefix(last, "v") && len(last) > 1 && last[1] >= '0' && last[1] <= '9' {
		last = parts[len(parts)-2] + "/" + last
	}
	return last + "." + of.Name()
}

func sorted[T any](of map[string]T) []string {
	names := make([]string, 0, len(of))
	for name := range of {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}
