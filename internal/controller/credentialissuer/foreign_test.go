package credentialissuer

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestSecretsOfOthersStay has Secrets of users under the agent's names: they stay unchanged, and the status says which
// Secret is in the way and what to do.
func TestSecretsOfOthersStay(t *testing.T) {
	t.Parallel()
	r := startReplica(t, startCluster(t), "default", true)
	theirs := map[string]*corev1.Secret{}
	for _, name := range []string{testNames.CASecret, testNames.TLSSecret, testNames.SignerSecret} {
		theirs[name] = &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"team": "a"}},
			Data:       map[string][]byte{"password": []byte("the only copy"), "tls.crt": []byte("mine")},
		}
		must.Do(t, r.live.Create(t.Context(), theirs[name]))
	}
	untouched := func() {
		t.Helper()
		for name, before := range theirs {
			if diff := cmp.Diff(before, mustSecret(t, r, name)); diff != "" {
				t.Errorf("Secret %q of a user (-before +after):\n%s", name, diff)
			}
		}
	}
	r.create(t, spec{Mode: "enabled", Service: svc{Type: "None"}, ExternalEndpoint: "proxy.example.com"})
	for len(theirs) > 0 {
		var named string
		testkit.Eventually(t, waitLimit, func() error {
			strategy, err := r.strategy(t.Context())
			for name := range theirs {
				if strings.Contains(strategy.Message, "default/"+name+": ") &&
					strings.Contains(strategy.Message, "rename or delete it") {
					named = name
					return err
				}
			}
			return errors.Join(err, fmt.Errorf("the message is %q", strategy.Message))
		})
		r.configure(t, func(s *spec) { s.Mode = "disabled" })
		r.waitFor(t, "Disabled", messageDisabled)
		untouched()
		r.configure(t, func(s *spec) { s.Mode = "enabled" })
		must.Do(t, r.live.Delete(t.Context(), mustSecret(t, r, named)))
		delete(theirs, named)
	}
	r.waitFor(t, "Listening", messageListening)
}
