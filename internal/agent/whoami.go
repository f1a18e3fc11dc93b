package agent

import (
	"context"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/internal/kubeversion"
	"github.com/pinniped-toolkit/pinniped/internal/logs"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

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
