package credentialissuer

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/signer"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

func TestClusterSigning(t *testing.T) {
	t.Parallel()
	refused := errors.New("creating a CertificateSigningRequest: forbidden")
	for _, test := range []struct {
		name   string
		state  signer.ClusterState
		status configv1alpha1.StrategyStatus
		reason configv1alpha1.StrategyReason
		starts string
		says   string
		code   string
		want   *configv1alpha1.TokenCredentialRequestAPIInfo
	}{
		{
			name: "is pending before the test has ended", status: "Error", reason: "Pending",
			starts: "testing the cluster's own signer",
		},
		{
			name:   "fails as on managed clusters when no signer answers",
			state:  signer.ClusterState{Tested: true, Err: refused, Server: "https://kube.example.com", CABundle: []byte("ca")},
			status: "Error", reason: "CouldNotFetchKey",
			starts: "could not find a healthy kube-controller-manager pod (0 candidates): note that this error is the " +
				"expected behavior for some cluster types, including most cloud provider clusters (e.g. GKE, AKS, EKS)",
			says: refused.Error(), code: "ClusterSignerUnavailable",
		},
		{
			name:   "tells first that no signer answers",
			state:  signer.ClusterState{Tested: true, Err: refused, InfoErr: errors.New("no ConfigMap")},
			status: "Error", reason: "CouldNotFetchKey", says: refused.Error(), code: "ClusterSignerUnavailable",
		},
		{
			name:   "fails without an address for clients",
			state:  signer.ClusterState{Tested: true, InfoErr: errors.New("no ConfigMap")},
			status: "Error", reason: "CouldNotGetClusterInfo", says: "no ConfigMap", code: "ClusterInfoUnavailable",
		},
		{
			name:   "tells clients the address",
			state:  signer.ClusterState{Tested: true, Server: "https://kube.example.com", CABundle: []byte("ca")},
			status: "Success", reason: "FetchedKey", starts: "key was fetched successfully", code: "ClusterSignerUsed",
			want: &configv1alpha1.TokenCredentialRequestAPIInfo{
				Server: "https://kube.example.com", CertificateAuthorityData: "Y2E=",
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := ClusterSigning{State: func() signer.ClusterState { return test.state }}
			got := c.Report(t.Context())
			if got.Type != c.Type() || got.Status != test.status || got.Reason != test.reason ||
				!strings.HasPrefix(got.Message, test.starts) || !strings.Contains(got.Message, test.says) {
				t.Errorf("got %+v", got)
			}
			var codes []string
			for _, finding := range got.Findings {
				codes = append(codes, finding.Code)
			}
			if strings.Join(codes, ",") != test.code {
				t.Errorf("want finding %q, got %v", test.code, codes)
			}
			var info *configv1alpha1.TokenCredentialRequestAPIInfo
			if got.Frontend != nil && got.Frontend.Type == configv1alpha1.FrontendTokenCredentialRequestAPI {
				info = got.Frontend.TokenCredentialRequestAPIInfo
			}
			if diff := cmp.Diff(test.want, info); diff != "" {
				t.Errorf("frontend (-want +got):\n%s", diff)
			}
		})
	}
}
