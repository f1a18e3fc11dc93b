package change

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestSecretOnARealAPIServer checks on a real API server that a Secret is created, overwritten, restored and deleted,
// and that concurrent changes are detected.
func TestSecretOnARealAPIServer(t *testing.T) {
	t.Parallel()
	client := startCluster(t, crds)
	w := iptlstest.New(t)
	const namespace = "default"
	pair := &keyPair{cert: w.Pair.CertPEM, key: w.Pair.KeyPEM}
	next := renewal(t, w)
	renewed := &keyPair{cert: next.CertPEM, key: next.KeyPEM}
	read := func(name string) *corev1.Secret {
		t.Helper()
		secret := must.Get(client.Secret(t.Context(), namespace, name))(t)
		return secret
	}
	holds := func(what, name string, want map[string][]byte) {
		t.Helper()
		if diff := cmp.Diff(want, read(name).Data); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}

	made := pair.intended(nil, namespace, "made", false)
	must.Get(writeSecret(t.Context(), client, nil, made, true))(t)
	if _, err := client.Secret(t.Context(), namespace, "made"); !errors.Is(err, discovery.ErrNotFound) {
		t.Fatalf("after a dry run: %v, want nothing", err)
	}
	first := must.Get(writeSecret(t.Context(), client, nil, made, false))(t)
	holds("made", "made", made.Data)
	if names, err := client.SecretNames(t.Context(), namespace, corev1.SecretTypeTLS); err != nil ||
		!cmp.Equal(names, []string{"made"}) {
		t.Errorf("the Secrets of type kubernetes.io/tls are %q, %v", names, err)
	}
	must.Get(client.ApplySecret(t.Context(), namespace, "theirs", secretFields(made, []string{"tls.crt", "tls.key"}, ""),
		discovery.ApplyOptions{FieldManager: "somebody"}))(t)
	made = renewed.intended(nil, namespace, "theirs", false)
	if _, err := writeSecret(t.Context(), client, nil, made, false); !errors.Is(err, discovery.ErrConflict) {
		t.Errorf("making what somebody else has made meanwhile: %v, want a conflict", err)
	}

	// A Secret of another owner, with a CA.
	before := read("theirs")
	before = must.Get(client.ApplySecret(t.Context(), namespace, "theirs", map[string]any{
		"metadata": map[string]any{"resourceVersion": before.ResourceVersion}, "type": "kubernetes.io/tls",
		"data": map[string]any{"tls.crt": pair.cert, "tls.key": pair.key, "ca.crt": w.CA.CertPEM()},
	}, discovery.ApplyOptions{FieldManager: "somebody"}))(t)
	wanted := renewed.intended(before, namespace, "theirs", true)
	after := must.Get(writeSecret(t.Context(), client, before, wanted, false))(t)
	holds("overwritten", "theirs", map[string][]byte{"tls.crt": renewed.cert, "tls.key": renewed.key, "ca.crt": {}})
	if _, err := writeSecret(t.Context(), client, before, wanted, false); !errors.Is(err, discovery.ErrConflict) {
		t.Errorf("overwriting what was read long ago: %v, want a conflict", err)
	}
	change := &secretChange{before: before, after: after}
	must.Do(t, change.undo(t.Context(), client, &ui.Progress{}))
	holds("put back", "theirs", before.Data)
	if err := change.undo(t.Context(), client, &ui.Progress{}); err == nil {
		t.Error("a second time it is somebody else's, and was overwritten")
	}

	if err := client.DeleteSecret(t.Context(), &corev1.Secret{ObjectMeta: read("theirs").ObjectMeta}); err != nil {
		t.Errorf("deleting: %v", err)
	}
	again := renewed.intended(first, namespace, "made", false)
	second := must.Get(writeSecret(t.Context(), client, first, again, false))(t)
	if err := client.DeleteSecret(t.Context(), first); !errors.Is(err, discovery.ErrConflict) {
		t.Errorf("deleting what was read long ago: %v, want a conflict", err)
	}
	must.Do(t, (&secretChange{after: second}).undo(t.Context(), client, &ui.Progress{}))
	if _, err := client.Secret(t.Context(), namespace, "made"); !errors.Is(err, discovery.ErrNotFound) {
		t.Errorf("after it was taken back: %v, want nothing", err)
	}
}
