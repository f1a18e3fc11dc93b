package check

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
)

// TestNoOracle checks that without permission, the result does not reveal whether the Secret exists.
func TestNoOracle(t *testing.T) {
	t.Parallel()
	var outputs []string
	for _, exists := range []bool{true, false} {
		w := iptlstest.New(t)
		if !exists {
			w.Cluster.TLSSecret = nil
		}
		r := runSet(t.Context(), w, "shared/proxy-tls")
		c, _ := runCheck(t, w, func(o *Options) { o.Certificate.Secret, o.Session.Output = "shared/proxy-tls", "text" })
		outputs = append(
			outputs,
			fmt.Sprint(r.Out.String(), r.ErrOut.String(), r.Err, ui.HintOf(r.Err), c.Out.String(), c.ErrOut.String(), c.Err),
		)
	}
	if diff := cmp.Diff(outputs[0], outputs[1]); diff != "" || !strings.Contains(outputs[0], "SecretNotPermitted") {
		t.Errorf("with the Secret and without (-with +without):\n%s\n%s", diff, outputs[0])
	}
}

func TestCheckOfAnotherNamespace(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	w.Share("proxy-tls", "pinniped-concierge")
	w.Cluster.Issuer.Spec.ImpersonationProxy.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{
		SecretName: "shared/proxy-tls",
	}
	r, result := runCheck(t, w, nil)
	r.Check(t, 0)
	if len(result.Subjects) != 1 || result.Subjects[0].Name != "Secret shared/proxy-tls" || !result.OK {
		t.Errorf("the result is %+v", result)
	}
	w.Cluster.MayRead = false
	r, result = runCheck(t, w, nil)
	r.Check(t, 3, "SecretNotPermitted")
	if result.OK {
		t.Error("it is said to be good")
	}
}
