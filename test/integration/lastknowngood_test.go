package integration

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

const lastKnownGoodSecret = "pinniped-concierge-impersonation-proxy-last-known-good-certificate"

// TestARestartWhileTheSecretIsBad kills replicas while the Secret is invalid. After the restart they serve the last
// known good certificate. Without one they are not ready. When the Secret is fixed, they recover by themselves.
func TestARestartWhileTheSecretIsBad(t *testing.T) {
	w := needsCluster(t)
	good := w.issue(t, "localhost")
	w.external(t, "lastgood-cert", pairData(good))
	w.waitForServed(t, 20*time.Second, good, 2, 2)
	bad := map[string][]byte{"tls.crt": good.CertPEM, "tls.key": w.issue(t, "localhost").KeyPEM}
	w.putSecret(t, "lastgood-cert", bad)
	w.waitForStatus(t, "ErrorDuringSetup", string(certs.KeyMismatch))
	_, follower := w.leader(t)
	kill(t, follower)
	testkit.Eventually(t, 30*time.Second, func() error {
		return errors.Join(presents(follower.ProxyAddress(), good), follower.Ready(t.Context()))
	})
	kill(t, w.agents...)
	w.allServe(t, 30*time.Second, good)
	w.waitForServed(t, 60*time.Second, good, 2, 2)

	// Without the backup there is no certificate to serve.
	stop(t, w.agents...)
	must.Do(t, w.admin.Delete(t.Context(), &corev1.Secret{ObjectMeta: ourMeta(lastKnownGoodSecret)}))
	start(t, w.agents...)
	w.waitForStatus(t, "ErrorDuringSetup", string(certs.KeyMismatch))
	testkit.Eventually(t, 30*time.Second, func() error {
		strategy := w.strategy(t)
		if strategy.Frontend != nil || strings.Contains(strategy.Message, "stays in service") {
			return fmt.Errorf("the status tells of a certificate that is not there: %+v", strategy)
		}
		return nil
	})
	for _, agent := range w.agents {
		if agent.Ready(t.Context()) == nil {
			t.Error("a replica without a certificate is ready")
		}
		if _, err := presented(agent.ProxyAddress()); err == nil {
			t.Error("a replica without a good certificate serves one")
		}
	}
	w.putSecret(t, "lastgood-cert", pairData(good))
	w.waitForStatus(t, "Listening", "")
	w.allServe(t, 30*time.Second, good)

	// The backup is deleted once its certificate is out of service.
	w.generatedOnly(t)
	testkit.Eventually(t, 20*time.Second, func() error {
		var secret corev1.Secret
		err := w.admin.Get(t.Context(), ours(lastKnownGoodSecret), &secret)
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("the copy is still there: %w", err)
		}
		return nil
	})
}
