package agent

import (
	"context"
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/pinniped-toolkit/pinniped/internal/kubeversion"
	"github.com/pinniped-toolkit/pinniped/internal/logs"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// DefaultNamespace is the namespace of the manifests.
const DefaultNamespace = "pinniped-concierge"

// podNamespaceFile contains the namespace of a pod.
const podNamespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// clientConfig returns the client configuration from a kubeconfig, or for the pod's service account if path is empty.
func clientConfig(path, version string) (config *rest.Config, err error) {
	if path == "" {
		if config, err = rest.InClusterConfig(); err != nil {
			return nil, fmt.Errorf("finding the pod's service account (outside a cluster, use --kubeconfig): %w", err)
		}
	} else if config, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: path}, &clientcmd.ConfigOverrides{}).ClientConfig(); err != nil {
		return nil, fmt.Errorf("reading kubeconfig %q: %w", path, err)
	}
	config.UserAgent = "pinniped-agent/" + version
	config.QPS = -1 // the API server limits requests fairly; a limit here would delay a certificate behind other writes
	return config, nil
}

// namespaceOr returns asked, else the pod's namespace, else fallback.
func namespaceOr(asked, fallback string) string {
	if asked != "" {
		return asked
	}
	if content, err := os.ReadFile(podNamespaceFile); err == nil {
		return strings.TrimSpace(string(content))
	}
	return fallback
}

// memoryFiles contain the memory limit of the container on Linux: cgroup v2, and v1.
var memoryFiles = []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}

// podMemory returns the memory limit of this process in bytes: that of its container, or 10/9 of GOMEMLIMIT if that is
// less. Without a limit, it is that of the default pod. Unless GOMEMLIMIT is set, it sets Go's own limit to nine
// tenths.
func podMemory() int64 {
	most := int64(math.MaxInt64)
	for _, file := range memoryFiles {
		text, err := os.ReadFile(file)
		if limit, bad := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && bad == nil && limit > 0 {
			most = limit
			break
		}
	}
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 { // GOMEMLIMIT
		return min(most, limit/9*10)
	}
	if most > maxPodMemory {
		return flowcontrol.DefaultMemory
	}
	debug.SetMemoryLimit(most / 10 * 9)
	return most
}

// maxPodMemory is more than any limit: an unlimited cgroup has a larger number.
const maxPodMemory = 1 << 46

// serviceAccount returns the name of the agent's ServiceAccount. It is "" when that is in another namespace, when the
// agent runs as another user, or when the API server does not say: before Kubernetes 1.28 it cannot.
func (a *agent) serviceAccount(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	review, err := a.kube.AuthenticationV1().SelfSubjectReviews().
		Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		logs.Warn(ctx, "Failed to determine the agent's ServiceAccount", "problem", err.Error())
		return ""
	}
	return accountIn(a.options.Namespace, review.Status.UserInfo.Username)
}

// accountIn returns the name of the ServiceAccount of a namespace with this username, or "".
func accountIn(namespace, username string) string {
	if name, ok := strings.CutPrefix(username, "system:serviceaccount:"+namespace+":"); ok {
		return name
	}
	return ""
}

// oldCluster returns and logs a finding if the API server's version is not supported, or nil.
func (a *agent) oldCluster(ctx context.Context) *configv1alpha1.StrategyFinding {
	found, err := a.kube.Discovery().ServerVersion()
	if err != nil {
		logs.Warn(ctx, "Failed to read the API server's version", "problem", err.Error())
		return nil
	}
	problem := kubeversion.TooOld(found.GitVersion)
	if problem == "" {
		return nil
	}
	logs.Warn(ctx, "Found an unsupported Kubernetes version", "problem", problem)
	return &configv1alpha1.StrategyFinding{
		Code: configv1alpha1.CodeKubernetesTooOld, Severity: configv1alpha1.FindingWarning, Message: problem,
	}
}
