package integration

import (
	"bytes"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestKubeconfigFollows changes the CA of the proxy while kubectl keeps using its kubeconfig: first both CAs are
// published, then a certificate of the new one is served. Nothing else in the file changes.
func TestKubeconfigFollows(t *testing.T) {
	w := needsCluster(t)
	w.external(t, "old-tls", pairData(w.issue(t, "localhost")))
	path := filepath.Join(t.TempDir(), "pinny.kubeconfig")
	w.asAdmin(t, "get", "kubeconfig", "--static-token=pinny:password123", "--follow",
		"--concierge-authenticator-type=webhook", "--concierge-authenticator-name=local-user-authenticator",
		"--concierge-mode=ImpersonationProxy", "--output="+path).ok(t)
	original := must.Get(os.ReadFile(path))(t)
	original = append([]byte("# given to pinny\n"), original...)
	left := filepath.Join(t.TempDir(), "left")
	for _, file := range []string{path, left} {
		must.Do(t, os.WriteFile(file, original, 0o600))
	}
	next := newCA(t, "Next Corporate CA", time.Now())
	both := append(bytes.Clone(w.pki.CertPEM()), next.CertPEM()...)
	w.putSecret(t, "next-tls", pairData(issueAt(t, next, time.Now(), 90*24*time.Hour, "localhost")))

	set := func(secret string, bundle []byte) func() {
		return func() {
			file := fileWith(t, "ca.pem", bundle)
			w.asAdmin(t, "ip-tls", "set", "--secret="+secret, "--ca-bundle="+file, "--timeout=30s",
				"--allow=OldClientsBreak").ok(t)
		}
	}
	for _, step := range []struct {
		name   string
		change func()
		bundle []byte
	}{
		{"before", func() {}, w.pki.CertPEM()},
		{"both CAs are published", set("old-tls", both), both},
		{"the new CA serves", set("next-tls", next.CertPEM()), next.CertPEM()},
	} {
		step.change()
		for range 2 { // first refreshes, then uses the result
			got := w.runWith(t, []string{"KUBECONFIG=" + path}, nil, w.kubectl, "auth", "whoami", "--output=yaml")
			if got.code != 0 || !strings.Contains(got.out, "username: pinny") || got.errOut != "" {
				t.Fatalf("%s: kubectl ended with %d\n%s%s", step.name, got.code, got.out, got.errOut)
			}
		}
		want := bytes.ReplaceAll(original, []byte(base64.StdEncoding.EncodeToString(w.pki.CertPEM())),
			[]byte(base64.StdEncoding.EncodeToString(step.bundle)))
		if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, want) {
			t.Errorf("%s: the kubeconfig is\n%s", step.name, after)
		}
	}
	w.runWith(t, []string{"KUBECONFIG=" + left}, nil, w.kubectl, "auth", "whoami").fails(t, "unknown authority")
}
