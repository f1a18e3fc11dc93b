package kubeversion

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTooOld(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"v1.29.0":             "",
		"v1.31.13-eks-113cf3": "",
		"v2.0.0":              "",
		"unknown":             "",
		"v1.27.16-gke.100": "Kubernetes 1.27.16-gke.100 is not supported, the oldest supported version is 1.29; without " +
			"SelfSubjectReview (since 1.28): the agent does not know its ServiceAccount; " +
			"flowcontrol.apiserver.k8s.io/v1 (since 1.29): the manifests need one more component",
	} {
		if diff := cmp.Diff(want, TooOld(version)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", version, diff)
		}
	}
}
