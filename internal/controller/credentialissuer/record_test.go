package credentialissuer

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/testkit"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// theIssuer returns the CredentialIssuer, with an error of the API server when there is none.
func (r *replica) theIssuer(t *testing.T) (*configv1alpha1.CredentialIssuer, error) {
	t.Helper()
	var issuer configv1alpha1.CredentialIssuer
	err := r.live.Get(t.Context(), types.NamespacedName{Name: testNames.CredentialIssuer}, &issuer)
	return &issuer, err
}

// owners returns who owns which fields of the spec.
func owners(t *testing.T, issuer *configv1alpha1.CredentialIssuer) map[string]any {
	t.Helper()
	all := map[string]any{}
	for _, entry := range issuer.ManagedFields {
		if entry.Subresource != "" {
			continue
		}
		var fields map[string]any
		if err := json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields); err != nil {
			t.Fatal(err)
		}
		all[entry.Manager+" "+string(entry.Operation)] = fields["f:spec"]
	}
	return all
}

// TestADeletedCredentialIssuer deletes the CredentialIssuer while the Secret that it names is bad. The replica that runs
// serves on, one that starts serves the last good certificate, and the leader makes the CredentialIssuer again, with
// its annotations, and with the owners of its fields.
func TestADeletedCredentialIssuer(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	leader := startNamedReplica(t, cluster, "default", "first", true)
	pki, err := certs.NewCA("corporate", time.Now(), 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	good, err := pki.IssueServing(certs.SANs{DNSNames: []string{"proxy.example.com"}}, time.Now(), 20*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leader.putSecret(t, "external", good, pki.CertPEM())
	leader.create(t, spec{Mode: "enabled", Service: svc{Type: "None"}, ExternalEndpoint: "proxy.example.com"})
	leader.waitFor(t, "Listening", messageListening)
	applied := fmt.Sprintf(`{"apiVersion":"config.concierge.pinniped.dev/v1alpha1","kind":"CredentialIssuer",
		"metadata":{"name":%q,"annotations":{"ip-tls.pinniped.dev/undo":"{\"a\":1}"},"labels":{"team":"blue"}},
		"spec":{"impersonationProxy":{"tls":{"secretName":"external","verification":"Enforce"}}}}`, testNames.CredentialIssuer)
	object := &configv1alpha1.CredentialIssuer{ObjectMeta: metav1.ObjectMeta{Name: testNames.CredentialIssuer}}
	if err := leader.live.Patch(t.Context(), object, client.RawPatch(types.ApplyPatchType, []byte(applied)),
		client.FieldOwner("pinniped-cli"), client.ForceOwnership); err != nil {
		t.Fatal(err)
	}
	leader.waitForServed(t, leafSHA256(t, good), 1, 1)
	before, err := leader.theIssuer(t)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, waitLimit, func() error {
		secret, there := leader.secret(t, testNames.RecordSecret)
		if !there || !strings.Contains(string(secret.Data[recordManifest]), "external") {
			return errors.New("it is not recorded")
		}
		return nil
	})

	leader.putSecret(t, "external", &certs.KeyPair{CertPEM: []byte("x"), KeyPEM: []byte("y")}, nil)
	leader.waitFor(t, "ErrorDuringSetup", string(certs.NotACertificate))
	if err := leader.live.Delete(t.Context(), before.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	deleted := time.Now()
	follower := startNamedReplica(t, cluster, "default", "second", false)
	testkit.Eventually(t, waitLimit, func() error {
		for _, replica := range []*replica{leader, follower} {
			if serving := replica.Holder.Current(); serving == nil || serving.SHA256() != leafSHA256(t, good) {
				return fmt.Errorf("%+v is served", serving)
			}
			if err := replica.Ready(); err != nil {
				return err
			}
		}
		return nil
	})
	var after *configv1alpha1.CredentialIssuer
	testkit.Eventually(t, waitLimit, func() error {
		after, err = leader.theIssuer(t)
		if err == nil && owners(t, after)[FieldManager+" Update"] != nil {
			err = errors.New("the agent owns the spec")
		}
		return err
	})
	if took := time.Since(deleted); took < remakeAfter/2 {
		t.Errorf("it was made again after %s already, while somebody may be about to replace it", took)
	}
	type kept struct {
		Spec                configv1alpha1.CredentialIssuerSpec
		Annotations, Labels map[string]string
		Owners              map[string]any
	}
	of := func(issuer *configv1alpha1.CredentialIssuer) kept {
		return kept{issuer.Spec, issuer.Annotations, issuer.Labels, owners(t, issuer)}
	}
	if diff := cmp.Diff(of(before), of(after)); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
	leader.waitFor(t, "ErrorDuringSetup", "stays in service")
	var told []string
	for len(leader.events.Events) > 0 {
		told = append(told, <-leader.events.Events)
	}
	if !slices.ContainsFunc(told, func(text string) bool { return strings.HasPrefix(text, "Warning "+reasonRestored) }) {
		t.Errorf("no event tells it: %q", told)
	}
}

// TestNoRecord starts a replica where there is neither a CredentialIssuer nor a record of one.
func TestNoRecord(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	first := startNamedReplica(t, cluster, "default", "first", true)
	testkit.Eventually(t, waitLimit, func() error {
		if err := first.Ready(); !errors.Is(err, errNoRecord) {
			return fmt.Errorf("ready: %w", err)
		}
		return nil
	})
	first.create(t, spec{Mode: "enabled", Service: svc{Type: "None"}, ExternalEndpoint: "proxy.example.com"})
	first.waitFor(t, "Listening", messageListening)
	generated := first.Holder.Current().SHA256()
	testkit.Eventually(t, waitLimit, func() error {
		if _, there := first.secret(t, testNames.RecordSecret); !there {
			return errors.New("it is not recorded")
		}
		return nil
	})
	issuer, err := first.theIssuer(t)
	if err != nil {
		t.Fatal(err)
	}
	first.leading.Store(false) // or it would record it again
	for _, object := range []client.Object{issuer, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: testNames.RecordSecret},
	}} {
		if err := first.live.Delete(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	first.leading.Store(true)
	second := startReplicaWith(t, cluster, "default", "second", true, func(r *Reconciler) {
		r.FirstSpec = &configv1alpha1.CredentialIssuerSpec{ImpersonationProxy: &spec{Mode: "disabled"}}
	})
	testkit.Eventually(t, waitLimit, func() error {
		for _, replica := range []*replica{first, second} {
			if serving := replica.Holder.Current(); serving == nil || serving.SHA256() != generated || !replica.proxy.Serving() {
				return fmt.Errorf("%+v is served", serving)
			}
			if err := replica.Ready(); err != nil {
				return err
			}
		}
		return nil
	})
	if _, err := first.theIssuer(t); !apierrors.IsNotFound(err) {
		t.Errorf("a CredentialIssuer was made of nothing: %v", err)
	}
}

func TestRecorded(t *testing.T) {
	t.Parallel()
	const good = `{"metadata":{"name":"config"},"spec":{"impersonationProxy":{"mode":"disabled"}}}`
	for _, test := range []struct {
		name, content string
		found, fails  bool
	}{
		{"reads what it wrote", good, true, false},
		{"makes nothing of another name", strings.Replace(good, "config", "other", 1), false, false},
		{"makes nothing of an empty one", "", false, false},
		{"says what it cannot read", "{", false, true},
	} {
		secrets := fixedSecrets{"record": {
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "record"},
			Data:       map[string][]byte{recordManifest: []byte(test.content)},
		}}
		r := &Reconciler{Secrets: secrets, Names: testNames, Namespace: "ns"}
		issuer, _, err := r.recorded(t.Context())
		if (issuer != nil) != test.found || (err != nil) != test.fails {
			t.Errorf("it %s: got %+v, %v", test.name, issuer, err)
		}
	}
}

// fixedSecrets are Secrets by name, in any namespace.
type fixedSecrets map[string]*corev1.Secret

func (f fixedSecrets) Get(_ context.Context, name types.NamespacedName) (*corev1.Secret, bool, error) {
	secret, found := f[name.Name]
	return secret, found, nil
}

func (fixedSecrets) Forget(func(types.NamespacedName) bool) {}

func leafSHA256(t *testing.T, pair *certs.KeyPair) string {
	t.Helper()
	certificate, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return certs.Fingerprint(certificate.Leaf.Raw)
}
