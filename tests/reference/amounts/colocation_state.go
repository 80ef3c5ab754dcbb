// in pkg/slo-controller/config
package config

import (
	"k8s.io/client-go/tools/record"

	"github.com/koordinator-sh/koordinator/apis/configuration"
)

// AnsweringHandler is a handler that keeps a configuration already.
func AnsweringHandler(kept configuration.ColocationCfg, available, failed bool) *ColocationHandlerForConfigMapEvent {
	handler := NewColocationHandlerForConfigMapEvent(nil, kept, record.NewFakeRecorder(10))
	handler.cfgCache.available, handler.cfgCache.errorStatus = available, failed
	return handler
}

// AnsweringState tells what the handler keeps.
func AnsweringState(handler *ColocationHandlerForConfigMapEvent) map[string]any {
	kept := &handler.cfgCache
	return map[string]any{"config": kept.colocationCfg, "available": kept.available, "error": kept.errorStatus}
}
