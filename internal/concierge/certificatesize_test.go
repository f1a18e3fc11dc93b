package concierge

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/warning"

	"github.com/pinniped-toolkit/pinniped/internal/signer"
	loginv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/login/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestCertificatesFitTheHandshake has users with so many groups that the proxy would end the handshake with their
// certificate. Their login fails with a reason.
func TestCertificatesFitTheHandshake(t *testing.T) {
	t.Parallel()
	ca := must.Get(certs.NewCA("CA", time.Now(), time.Hour))(t)
	agent := &signer.Signer{}
	agent.Load(ca, nil)
	for count, fits := range map[int]bool{350: true, 1000: false} {
		groups := make([]string, 0, count)
		for i := range count {
			groups = append(groups, fmt.Sprintf("%060d", i))
		}
		vouches := &vouching{user: &user.DefaultInfo{Name: "ann", Groups: groups}, ok: true}
		var warnings said
		got := must.Get(newCredentialRequests(vouches, issuers{agent: agent}, 0, auditLog{}).Create(
			warning.WithWarningRecorder(t.Context(), &warnings),
			&loginv1alpha1.TokenCredentialRequest{
				Spec: loginv1alpha1.TokenCredentialRequestSpec{Token: "t", Authenticator: testReference},
			}, nil, nil))(t)
		if issued := got.(*loginv1alpha1.TokenCredentialRequest).Status.Credential != nil; issued != fits {
			t.Errorf("%d groups: issued %v, %v", count, issued, warnings)
		}
		if !fits && (len(warnings) != 1 || !strings.Contains(warnings[0], "the impersonation proxy accepts 28672")) {
			t.Errorf("%d groups: %q", count, warnings)
		}
	}
}
