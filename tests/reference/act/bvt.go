// in pkg/koordlet/runtimehooks/hooks/groupidentity
package groupidentity

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	ext "github.com/koordinator-sh/koordinator/apis/extension"
	slov1alpha1 "github.com/koordinator-sh/koordinator/apis/slo/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/runtimehooks/protocol"
	sysutil "github.com/koordinator-sh/koordinator/pkg/koordlet/util/system"
)

type bvtQuestion struct {
	Op                  string
	Strategy            *slov1alpha1.ResourceQOSStrategy
	Supported           *bool
	Sysctl              *int
	Labels, Annotations map[string]string
	CgroupParent        string
	KubeQOS             corev1.PodQOSClass
	QOS                 ext.QoSClass
}

func init() { answering.Area("bvt", answering.Of(bvtAnswer)) }

func bvtAnswer(asked bvtQuestion) (any, error) {
	supported, hasSysctl := asked.Supported == nil || *asked.Supported, asked.Sysctl != nil
	b := &bvtPlugin{sysSupported: &supported, hasKernelEnabled: &hasSysctl}
	if hasSysctl {
		root, err := os.MkdirTemp("", "answering")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(root)
		sysutil.Conf.ProcRootDir = root
		path := sysutil.GetProcSysFilePath(sysutil.KernelSchedGroupIdentityEnable)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(path, []byte(strconv.Itoa(*asked.Sysctl)), 0o644); err != nil {
			return nil, err
		}
	}
	if _, err := b.parseRule(&slov1alpha1.NodeSLOSpec{ResourceQOSStrategy: asked.Strategy}); err != nil {
		return nil, err
	}
	switch asked.Op {
	case "rule":
		r := b.getRule()
		return map[string]any{
			"enabled": r.enable, "byQoS": r.podQOSParams, "byKubeGroup": r.kubeQOSDirParams, "byKubeQoS": r.kubeQOSPodParams,
		}, nil
	case "pod":
		context := &protocol.PodContext{}
		context.Request.Labels, context.Request.Annotations = asked.Labels, asked.Annotations
		context.Request.CgroupParent = asked.CgroupParent
		return valueOf(&context.Response.Resources, b.SetPodBvtValue(context)), nil
	case "kubeqos":
		context := &protocol.KubeQOSContext{}
		context.Request.KubeQOSClass = asked.KubeQOS
		return valueOf(&context.Response.Resources, b.SetKubeQOSBvtValue(context)), nil
	case "hostapp":
		context := &protocol.HostAppContext{}
		context.Request.QOSClass = asked.QOS
		return valueOf(&context.Response.Resources, b.SetHostAppBvtValue(context)), nil
	}
	return nil, fmt.Errorf("nothing answers %s", asked.Op)
}

func valueOf(resources *protocol.Resources, err error) any {
	if err != nil {
		return map[string]any{"error": true}
	}
	return map[string]any{"bvt": resources.CPUBvt}
}
