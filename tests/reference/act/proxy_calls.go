// in pkg/runtimeproxy/server/cri
package cri

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/koordinator-sh/koordinator/apis/runtime/v1alpha1"
	"github.com/koordinator-sh/koordinator/cmd/koord-runtime-proxy/options"
	"github.com/koordinator-sh/koordinator/pkg/runtimeproxy/client"
	"github.com/koordinator-sh/koordinator/pkg/runtimeproxy/config"
	"github.com/koordinator-sh/koordinator/pkg/runtimeproxy/dispatcher"
	"github.com/koordinator-sh/koordinator/pkg/runtimeproxy/store"
)

// Call is one request that a proxy with one hook server gets.
type Call struct {
	Request       string
	RuntimeHooks  []config.RuntimeHookType
	FailurePolicy config.FailurePolicyType
	Labels        map[string]string
	HookFails     bool
}

// Answer says who is called, in order.
func (c Call) Answer() (any, error) {
	options.RuntimeHookServerKey, options.RuntimeHookServerVal = "runtimeproxy.koordinator.sh/skip-hookserver", "true"
	calls := &calledHooks{fails: c.HookFails, names: []string{}}
	server := &RuntimeManagerCriServer{hookDispatcher: dispatcher.Of(calls, oneServer{&config.RuntimeHookConfig{
		FailurePolicy: c.FailurePolicy, RuntimeHooks: c.RuntimeHooks,
	}})}
	store.WritePodSandboxInfo("pod", &store.PodSandboxInfo{PodSandboxHookRequest: &v1alpha1.PodSandboxHookRequest{Labels: c.Labels}})
	store.WriteContainerInfo("container", &store.ContainerInfo{ContainerResourceHookRequest: &v1alpha1.ContainerResourceHookRequest{PodLabels: c.Labels}})
	linux := &runtimeapi.LinuxContainerConfig{}
	requests := map[string]struct {
		kind    RuntimeServiceType
		request any
		answer  any
	}{
		"RunPodSandbox": {RunPodSandbox, &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{}, Labels: c.Labels, Linux: &runtimeapi.LinuxPodSandboxConfig{},
		}}, &runtimeapi.RunPodSandboxResponse{PodSandboxId: "pod"}},
		"StopPodSandbox": {StopPodSandbox, &runtimeapi.StopPodSandboxRequest{PodSandboxId: "pod"}, &runtimeapi.StopPodSandboxResponse{}},
		"CreateContainer": {CreateContainer, &runtimeapi.CreateContainerRequest{
			PodSandboxId: "pod", Config: &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{}, Linux: linux},
			SandboxConfig: &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{}},
		}, &runtimeapi.CreateContainerResponse{ContainerId: "new"}},
		"StartContainer": {StartContainer, &runtimeapi.StartContainerRequest{ContainerId: "container"}, &runtimeapi.StartContainerResponse{}},
		"StopContainer":  {StopContainer, &runtimeapi.StopContainerRequest{ContainerId: "container"}, &runtimeapi.StopContainerResponse{}},
		"UpdateContainerResources": {UpdateContainerResources, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: "container"},
			&runtimeapi.UpdateContainerResourcesResponse{}},
	}
	asked, found := requests[c.Request]
	if !found {
		return nil, errors.New("no request that hooks are called for")
	}
	_, err := server.InterceptRuntimeRequest(asked.kind, context.Background(), asked.request, func(context.Context, any) (any, error) {
		calls.names = append(calls.names, "backend")
		return asked.answer, nil
	}, false)
	return map[string]any{"calls": calls.names, "error": err != nil}, nil
}

type oneServer struct{ config *config.RuntimeHookConfig }

func (s oneServer) Run() error { return nil }

func (s oneServer) GetAllHook() []*config.RuntimeHookConfig {
	return []*config.RuntimeHookConfig{s.config}
}

type calledHooks struct {
	v1alpha1.RuntimeHookServiceClient
	fails bool
	names []string
}

func (h *calledHooks) RuntimeHookServerClient(client.HookServerPath) (*client.RuntimeHookClient, error) {
	return &client.RuntimeHookClient{RuntimeHookServiceClient: h}, nil
}

func (h *calledHooks) call(name string) error {
	h.names = append(h.names, name)
	if h.fails && config.RuntimeHookType(name).HookStage() == config.PreHook {
		return errors.New("a hook that fails")
	}
	return nil
}

func (h *calledHooks) pod(name string) (*v1alpha1.PodSandboxHookResponse, error) {
	return &v1alpha1.PodSandboxHookResponse{}, h.call(name)
}

func (h *calledHooks) container(name string) (*v1alpha1.ContainerResourceHookResponse, error) {
	return &v1alpha1.ContainerResourceHookResponse{}, h.call(name)
}

func (h *calledHooks) PreRunPodSandboxHook(context.Context, *v1alpha1.PodSandboxHookRequest, ...grpc.CallOption) (*v1alpha1.PodSandboxHookResponse, error) {
	return h.pod("PreRunPodSandbox")
}

func (h *calledHooks) PostStopPodSandboxHook(context.Context, *v1alpha1.PodSandboxHookRequest, ...grpc.CallOption) (*v1alpha1.PodSandboxHookResponse, error) {
	return h.pod("PostStopPodSandbox")
}

func (h *calledHooks) PreCreateContainerHook(context.Context, *v1alpha1.ContainerResourceHookRequest, ...grpc.CallOption) (*v1alpha1.ContainerResourceHookResponse, error) {
	return h.container("PreCreateContainer")
}

func (h *calledHooks) PreStartContainerHook(context.Context, *v1alpha1.ContainerResourceHookRequest, ...grpc.CallOption) (*v1alpha1.ContainerResourceHookResponse, error) {
	return h.container("PreStartContainer")
}

func (h *calledHooks) PostStartContainerHook(context.Context, *v1alpha1.ContainerResourceHookRequest, ...grpc.CallOption) (*v1alpha1.ContainerResourceHookResponse, error) {
	return h.container("PostStartContainer")
}

func (h *calledHooks) PostStopContainerHook(context.Context, *v1alpha1.ContainerResourceHookRequest, ...grpc.CallOption) (*v1alpha1.ContainerResourceHookResponse, error) {
	return h.container("PostStopContainer")
}

func (h *calledHooks) PreUpdateContainerResourcesHook(context.Context, *v1alpha1.ContainerResourceHookRequest, ...grpc.CallOption) (*v1alpha1.ContainerResourceHookResponse, error) {
	return h.container("PreUpdateContainerResources")
}
