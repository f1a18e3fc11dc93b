package change

import (
	"context"
	"testing"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
)

// TestInterruptNamesUndo interrupts a command while it waits, and checks that the message names undo.
func TestInterruptNamesUndo(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	w.Cluster.AfterApply = func(*iptlstest.Cluster) { cancel() }
	runSet(ctx, w, nil).Check(t, 130, "interrupted: the CredentialIssuer has changed", "pinniped ip-tls undo")
}

// TestOvertaken checks a concurrent change of the same fields by another administrator.
func TestOvertaken(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	w.Obey(t)
	w.Cluster.BeforeApply = func(c *iptlstest.Cluster) {
		if c.Issuer.Spec.ImpersonationProxy.TLS == nil {
			c.Issuer.Spec.ImpersonationProxy.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "theirs"}
			c.Bump()
		}
	}
	runSet(t.Context(), w, nil).Check(t, 3, "was changed in the meantime", "tls.secretName from (none) to theirs",
		"nothing was changed")
	if got := SpecOf(w).TLS.SecretName; got != "theirs" {
		t.Errorf("it is %s", got)
	}
}
