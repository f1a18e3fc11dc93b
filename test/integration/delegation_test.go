package integration

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

const (
	owners     = "owners"
	sharedName = "wildcard-tls"
	sharedTLS  = owners + "/" + sharedName
	grantName  = sharedName + "-to-" + devinstall.Namespace
	// withdrawal is how soon a withdrawn permission must take effect.
	withdrawal = 5 * time.Second
)

// TestDelegation uses a Secret of another namespace, with the shipped manifests and the agent's own permissions: not
// permitted, partly permitted, permitted, renewed, and each permission withdrawn, under load.
func TestDelegation(t *testing.T) {
	w := needsCluster(t)
	w.generatedOnly(t)
	roots := trusting(w.pki.CertPEM(), w.publishedBundle(t))
	w.owners(t)
	kubectl := func(args ...string) string {
		t.Helper()
		return w.succeed(
			t,
			w.kubectl,
			append(
				[]string{"--kubeconfig=" + w.Cluster.AdminKubeconfig(), "--cache-dir=" + t.TempDir(), "--namespace=" + owners},
				args...)...)
	}

	// Not permitted, and the kind does not exist. The result is the same with and without the Secret.
	w.asAdmin(t, "ip-tls", "delegate", sharedTLS).exits(t, 1, "deploy/tlscertificatedelegation")
	w.configure(t, func(s *configv1alpha1.ImpersonationProxySpec) {
		s.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: sharedTLS}
	})
	refusedWithout := w.asAdmin(t, "ip-tls", "set", "--secret", sharedTLS)
	statusWithout := w.waitForStatus(t, "ErrorDuringSetup", "SecretNotPermitted").Message
	first := w.issue(t, "localhost")
	w.putShared(t, first)
	refusedWith := w.asAdmin(t, "ip-tls", "set", "--secret", sharedTLS)
	if refusedWith.code != 3 || refusedWith != refusedWithout {
		t.Errorf("set says, without the Secret: %+v\nand with it: %+v", refusedWithout, refusedWith)
	}
	must.Do(t, w.Cluster.Install(t.Context(), filepath.Join(w.Deploy, "tlscertificatedelegation")))
	w.waitForStatus(t, "ErrorDuringSetup", "no TLSCertificateDelegation in namespace \"owners\"")
	if !strings.Contains(statusWithout, "the cluster has no TLSCertificateDelegations") {
		t.Errorf("without the kind, the status said %q", statusWithout)
	}

	// explain says what is missing, and what to ask for.
	explained := w.explain(t, 3)
	if explained.Reason != string(delegation.NotDelegated) || len(explained.NearMisses) != 0 {
		t.Errorf("the explanation is %+v", explained)
	}
	manifest, half := filepath.Join(t.TempDir(), "delegation.yaml"), filepath.Join(t.TempDir(), "half.yaml")
	printed := w.succeed(t, w.cli, "ip-tls", "delegate", sharedTLS, "--to", devinstall.Namespace, "--dry-run", "-o",
		"yaml")
	if printed != explained.Manifest {
		t.Errorf("explain and delegate print different objects:\n%s\n%s", explained.Manifest, printed)
	}
	must.Do(t, os.WriteFile(manifest, []byte(printed), 0o600))

	// Partly: a delegation without a RoleBinding, first for another namespace, then for the agent's.
	documents := strings.Split(printed, "---\n")
	must.Do(t, os.WriteFile(half, []byte(documents[0]+"---\n"+documents[2]), 0o600))
	kubectl("apply", "--filename="+half)
	kubectl("patch", "tlscertificatedelegation", grantName, "--type=json",
		`--patch=[{"op":"replace","path":"/spec/delegations/0/targetNamespaces","value":["*","other"]}]`)
	if got := w.explain(t, 3); len(got.NearMisses) != 1 || got.NearMisses[0].Kind != delegation.MissAsteriskMixed {
		t.Errorf("the near misses are %+v", got.NearMisses)
	}
	kubectl("apply", "--filename="+half)
	w.waitForStatus(t, "ErrorDuringSetup", "RBAC does not let the agent's service account")
	if got := w.explain(t, 3); got.Reason != string(delegation.NotReadable) {
		t.Errorf("the explanation is %+v", got)
	}
	if asked := w.askedForSecrets(t); len(asked) > 0 {
		t.Errorf("without permission the agent asked for: %q", asked)
	}

	// Permitted.
	w.asAdmin(t, "ip-tls", "delegate", sharedTLS).exits(t, 0, "applied")
	if got := w.asAdmin(t, "ip-tls", "delegate", sharedTLS); got.code != 0 || strings.Count(got.out, " unchanged\n") != 3 {
		t.Fatalf("delegate, once more: %+v", got)
	}
	w.bothPresent(t, 20*time.Second, first)
	w.waitForStatus(t, "Listening", "")
	if got := w.explain(t, 0); got.Permitted != "yes" || got.Manifest != "" {
		t.Errorf("the explanation is %+v", got)
	}
	asked := w.askedForSecrets(t)
	for _, one := range asked {
		if one != "list "+sharedTLS && one != "watch "+sharedTLS {
			t.Errorf("the agent asked for more than is permitted: %s", one)
		}
	}
	if len(asked) == 0 {
		t.Error("the audit log does not show how the agent reads the Secret")
	}
	w.mayReadThisAlone(t)
	w.asAdmin(t, "ip-tls", "set", "--secret", sharedTLS, "--timeout", "60s", "--allow",
		"OldClientsBreak").ok(t)
	w.asAdmin(t, "ip-tls", "check").exits(t, 0, "Secret "+sharedTLS)
	second := w.issue(t, "localhost")
	w.putShared(t, second)
	w.bothPresent(t, withdrawal, second)

	// Withdrawn, each permission alone, under load.
	traffic := w.load(t, roots)
	for _, piece := range []struct {
		name     string
		withdraw func()
		says     string
	}{
		{"the RoleBinding", func() { kubectl("delete", "rolebinding", grantName) }, "RBAC does not let"},
		{"the Role", func() { kubectl("delete", "role", grantName) }, "RBAC does not let"},
		{
			"the delegation", func() { kubectl("delete", "tlscertificatedelegation", grantName) }, "no TLSCertificateDelegation",
		},
		{"the Secret in the delegation", func() {
			kubectl(
				"patch", "tlscertificatedelegation", grantName, "--type=json",
				`--patch=[{"op":"replace","path":"/spec/delegations/0/secretName","value":"other"}]`,
			)
		}, "no TLSCertificateDelegation"},
		{"everything, by the command", func() {
			if got := w.asAdmin(
				t, "ip-tls", "delegate", sharedTLS, "--revoke", "--allow=OldClientsBreak",
			); got.code != 0 || strings.Count(got.out, "removed") != 3 {
				t.Errorf("revoke: %+v", got)
			}
		}, "no TLSCertificateDelegation"},
		{
			"the kind", func() { kubectl("delete", "customresourcedefinition", delegation.Plural+"."+delegation.Group) },
			"the cluster has no TLSCertificateDelegations",
		},
	} {
		kubectl("apply", "--server-side", "--force-conflicts", "--filename="+manifest)
		w.bothPresent(t, 20*time.Second, second)
		piece.withdraw()
		start := time.Now()
		w.bothGenerated(t, withdrawal)
		t.Logf("%s was withdrawn after %s", piece.name, time.Since(start).Round(time.Millisecond))
		w.waitForStatus(t, "ErrorDuringSetup", piece.says)
		w.waitForStatus(t, "ErrorDuringSetup", "is served instead")
	}
	traffic.stop(t)
	for _, agent := range w.agents {
		if err := agent.Ready(t.Context()); err != nil {
			t.Error(err)
		}
		log := must.Get(os.ReadFile(agent.Log()))(t)
		if bytes.Contains(log, []byte("PRIVATE KEY")) {
			t.Error("a key is in the log")
		}
	}
}

// owners creates the namespace until the end of the test.
func (w *world) owners(t *testing.T) {
	t.Helper()
	w.namespace(t, owners)
	t.Cleanup(func() { w.endSharing(t) })
}

// endSharing deletes all objects for the shared Secret one by one: the cluster has no controller that deletes the
// objects of a deleted namespace.
func (w *world) endSharing(t *testing.T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	definition := &unstructured.Unstructured{}
	definition.SetAPIVersion("apiextensions.k8s.io/v1")
	definition.SetKind("CustomResourceDefinition")
	definition.SetName(delegation.Plural + "." + delegation.Group)
	meta := metav1.ObjectMeta{Namespace: owners, Name: grantName}
	for _, object := range []client.Object{
		definition, &rbacv1.RoleBinding{ObjectMeta: meta}, &rbacv1.Role{ObjectMeta: meta},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: owners, Name: sharedName}},
	} {
		if err := w.admin.Delete(ctx, object); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	}
}

func (w *world) putShared(t *testing.T, pair *certs.KeyPair) {
	t.Helper()
	w.putSharedData(t, withCA(pair, w.pki.CertPEM()))
}

func (w *world) putSharedData(t *testing.T, data map[string][]byte) {
	t.Helper()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: owners, Name: sharedName},
		Type:       corev1.SecretTypeTLS,
		Data:       data,
	}
	err := w.admin.Create(t.Context(), secret)
	if apierrors.IsAlreadyExists(err) {
		err = w.admin.Update(t.Context(), secret)
	}
	must.Do(t, err)
}

// explanation has the fields that a script reads from `ip-tls explain`.
type explanation struct {
	Permitted  string                `json:"permitted"`
	Reason     string                `json:"reason"`
	NearMisses []delegation.NearMiss `json:"nearMisses"`
	Manifest   string                `json:"manifest"`
}

func (w *world) explain(t *testing.T, code int) (got explanation) {
	t.Helper()
	decoded(t, w.asAdmin(t, "ip-tls", "explain", sharedTLS, "-o", "json"), code, &got)
	return got
}

// bothPresent waits until every replica presents the certificate of pair.
func (w *world) bothPresent(t *testing.T, limit time.Duration, pair *certs.KeyPair) {
	t.Helper()
	start := time.Now()
	for _, agent := range w.agents {
		testkit.Eventually(t, limit-time.Since(start), func() error { return presents(agent.ProxyAddress(), pair) })
	}
}

// bothGenerated waits until every replica presents a generated certificate.
func (w *world) bothGenerated(t *testing.T, limit time.Duration) {
	t.Helper()
	start := time.Now()
	for _, agent := range w.agents {
		testkit.Eventually(t, limit-time.Since(start), func() error { return presentsGenerated(agent) })
	}
}

// mayReadThisAlone shows that the agent's only permissions in the owners' namespace are those for the one Secret.
func (w *world) mayReadThisAlone(t *testing.T) {
	t.Helper()
	identity := must.Get(w.Cluster.ServiceAccountConfig(t.Context(), devinstall.Namespace, devinstall.AgentAccount))(t)
	core := must.Get(corev1client.NewForConfig(identity))(t)
	if _, err := core.Secrets(owners).Get(t.Context(), sharedName, metav1.GetOptions{}); err != nil {
		t.Errorf("what is permitted: %v", err)
	}
	for what, err := range map[string]error{
		"another Secret": second(core.Secrets(owners).Get(t.Context(), "other", metav1.GetOptions{})),
		"all of them":    second(core.Secrets(owners).List(t.Context(), metav1.ListOptions{})),
		"other namespaces": second(core.Secrets("kube-system").List(t.Context(), metav1.ListOptions{
			FieldSelector: "metadata.name=" + sharedName,
		})),
		"all namespaces": second(core.Secrets("").List(t.Context(), metav1.ListOptions{})),
		"deleting it": core.Secrets(owners).Delete(
			t.Context(), sharedName, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}},
		),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want Forbidden", what, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// askedForSecrets returns the agent's requests for Secrets of the owners' namespace, from the API server's audit log.
func (w *world) askedForSecrets(t *testing.T) (asked []string) {
	t.Helper()
	for event := range w.audit(t) {
		if ref := event.ObjectRef; event.User.Username == agentUser && ref.Resource == "secrets" &&
			ref.Namespace != devinstall.Namespace {
			asked = append(asked, event.Verb+" "+ref.Namespace+"/"+ref.Name)
		}
	}
	return asked
}
