// in pkg/runtimeproxy/server/docker
package docker

import (
	"encoding/json"
	"fmt"

	"github.com/docker/docker/api/types/container"

	"github.com/koordinator-sh/koordinator/pkg/answering"
	executor "github.com/koordinator-sh/koordinator/pkg/runtimeproxy/resexecutor/cri"
	criserver "github.com/koordinator-sh/koordinator/pkg/runtimeproxy/server/cri"
)

type proxyQuestion struct {
	Op                        string
	Current, Response, Cached *executor.Resources
	Request                   json.RawMessage
	Driver, CgroupParent      string
	Env                       []string
	Labels                    map[string]string
}

func init() {
	answering.Area("runtime-proxy-merge", func(input json.RawMessage) (any, error) {
		var asked proxyQuestion
		if err := json.Unmarshal(input, &asked); err != nil {
			return nil, err
		}
		if asked.Op == "calls" {
			var call criserver.Call
			if err := json.Unmarshal(input, &call); err != nil {
				return nil, err
			}
			return call.Answer()
		}
		return asked.answer()
	})
}

func (q proxyQuestion) answer() (any, error) {
	var request *executor.Resources
	if q.Request != nil {
		if err := json.Unmarshal(q.Request, &request); err != nil {
			return nil, err
		}
	}
	switch q.Op {
	case "hook_response":
		return map[string]any{"resources": executor.WithAnswer(q.Current, q.Response)}, nil
	case "update_request":
		return map[string]any{"resources": executor.WithUpdate(q.Cached, request)}, nil
	case "docker_update":
		var update *container.UpdateConfig
		if request != nil {
			update = &container.UpdateConfig{Resources: container.Resources{
				CPUPeriod: request.CPUPeriod, CPUQuota: request.CPUQuota, CPUShares: request.CPUShares,
				Memory: request.MemoryLimitInBytes, CpusetCpus: request.CpusetCpus, CpusetMems: request.CpusetMems,
				MemorySwap: request.MemorySwapLimitInBytes,
			}}
		}
		return map[string]any{"resources": executor.ResourcesOf(MergeResourceByUpdateConfig(q.Cached.Message(), update))}, nil
	case "docker_to_cri_path":
		return map[string]any{"path": ToCriCgroupPath(q.Driver, q.CgroupParent)}, nil
	case "docker_parent":
		return map[string]any{"cgroupParent": generateExpectedCgroupParent(q.Driver, q.CgroupParent)}, nil
	case "docker_labels":
		labels, annotations := splitLabelsAndAnnotations(q.Labels)
		return map[string]any{"labels": labels, "annotations": annotations}, nil
	case "docker_env":
		return map[string]any{"envs": splitDockerEnv(q.Env)}, nil
	}
	return nil, fmt.Errorf("nothing answers %s", q.Op)
}
