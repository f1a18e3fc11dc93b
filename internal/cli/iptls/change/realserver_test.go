package change

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
	"github.com/pinniped-toolkit/pinniped/test/testkit/same"
)

// TestApplyOnARealAPIServer checks server-side apply of plan.ApplyObject on a real API server.
func TestApplyOnARealAPIServer(t *testing.T) {
	t.Parallel()
	client := startCluster(t, crds)
	endpoint := "proxy.example.com"
	cases := []struct {
		name   string
		before map[string]any // applied by another manager
		req    plan.Request
		change func(*configv1alpha1.ImpersonationProxySpec)
	}{
		{
			name:   "generated-to-external",
			before: map[string]any{"mode": "enabled", "service": map[string]any{"type": "ClusterIP"}},
			req:    plan.Request{Secret: "a", Endpoint: &endpoint},
			change: func(spec *configv1alpha1.ImpersonationProxySpec) {
				spec.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{
					SecretName:               "a",
					CertificateAuthorityData: "QQ==",
					Verification:             "Enforce",
				}
				spec.ExternalEndpoint = endpoint
			},
		},
		{
			name: "external-of-another-manager",
			before: map[string]any{
				"mode":             "enabled",
				"service":          map[string]any{"type": "LoadBalancer", "loadBalancerIP": "203.0.113.1"},
				"externalEndpoint": "old.example.com",
				"tls":              map[string]any{"secretName": "old", "certificateAuthorityData": "Qg=="},
			},
			req: plan.Request{Secret: "a", Endpoint: &endpoint, LoadBalancerIP: &endpoint, BundleFromSecret: true},
			change: func(spec *configv1alpha1.ImpersonationProxySpec) {
				spec.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "a", Verification: "Enforce"}
				spec.ExternalEndpoint = endpoint
				spec.Service.LoadBalancerIP = "203.0.113.2"
			},
		},
		{
			name: "only-the-secret",
			before: map[string]any{
				"mode":             "auto",
				"service":          map[string]any{"type": "ClusterIP", "annotations": map[string]any{"k": "v"}},
				"externalEndpoint": "old.example.com",
				"tls":              map[string]any{"secretName": "old", "certificateAuthorityData": "Qg=="},
			},
			req: plan.Request{Secret: "a"},
			change: func(spec *configv1alpha1.ImpersonationProxySpec) {
				spec.TLS.SecretName, spec.TLS.Verification = "a", "Enforce"
			},
		},
	}
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			before := apply(t, client, tt.name, map[string]any{"spec": map[string]any{"impersonationProxy": tt.before}},
				"gitops")
			wanted := *before.Spec.ImpersonationProxy.DeepCopy()
			tt.change(&wanted)

			changed := apply(t, client, tt.name, plan.ApplyObject(before, wanted, tt.req), plan.FieldManager)
			same.Values(t, "after applying", &wanted, changed.Spec.ImpersonationProxy)
			again := apply(t, client, tt.name, plan.ApplyObject(changed, wanted, plan.Request{Secret: tt.req.Secret}),
				plan.FieldManager)
			same.Values(t, "after a second run without the other flags", &wanted, again.Spec.ImpersonationProxy)
			_, err := client.ApplyCredentialIssuer(t.Context(), tt.name, plan.ApplyObject(before, wanted, tt.req),
				discovery.ApplyOptions{FieldManager: plan.FieldManager, Force: true})
			if !errors.Is(err, discovery.ErrConflict) {
				t.Errorf("applying to what was read long ago: %v, want a conflict", err)
			}
			back := mergeAs(t, client, again, must.Get(plan.MergePatch(again, *before.Spec.ImpersonationProxy))(t))
			same.Values(t, "after putting it back", before.Spec.ImpersonationProxy, back.Spec.ImpersonationProxy)
		})
	}
}

// TestUnsetOnARealAPIServer checks that unset removes the tls block even if another field manager owns it, that a
// rollback restores the block, and that set can own it again.
func TestUnsetOnARealAPIServer(t *testing.T) {
	t.Parallel()
	client := startCluster(t, crds)
	block := map[string]any{"secretName": "theirs", "certificateAuthorityData": "Qg==", "verification": "Warn"}
	spec := func(proxy map[string]any) map[string]any {
		return map[string]any{"spec": map[string]any{"impersonationProxy": proxy}}
	}
	bare := map[string]any{
		"mode":             "enabled",
		"service":          map[string]any{"type": "None"},
		"externalEndpoint": "proxy.example.com",
	}
	for _, tt := range []struct {
		name   string
		create func(t *testing.T, name string) *configv1alpha1.CredentialIssuer
	}{
		{name: "of-kubectl-edit", create: func(t *testing.T, name string) *configv1alpha1.CredentialIssuer {
			t.Helper()
			apply(t, client, name, spec(bare), "gitops")
			return must.Get(client.MergeCredentialIssuer(t.Context(), name, spec(map[string]any{"tls": block}),
				discovery.ApplyOptions{FieldManager: "kubectl-edit"}))(t)
		}},
		{name: "of-a-tool-that-applies", create: func(t *testing.T, name string) *configv1alpha1.CredentialIssuer {
			t.Helper()
			return apply(t, client, name, spec(map[string]any{
				"mode": "enabled", "service": bare["service"], "externalEndpoint": "proxy.example.com", "tls": block,
			}), "gitops")
		}},
		{name: "of-set-itself", create: func(t *testing.T, name string) *configv1alpha1.CredentialIssuer {
			t.Helper()
			apply(t, client, name, spec(bare), "gitops")
			return apply(t, client, name, spec(map[string]any{"tls": block}), plan.FieldManager)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			before := tt.create(t, tt.name)
			wanted := *before.Spec.ImpersonationProxy.DeepCopy()
			wanted.TLS = nil
			options := discovery.ApplyOptions{FieldManager: plan.FieldManager}
			dry := options
			dry.DryRun = true
			patch := must.Get(plan.MergePatch(before, wanted))(t)
			must.Get(client.MergeCredentialIssuer(t.Context(), tt.name, patch, dry))(t)
			changed := must.Get(client.MergeCredentialIssuer(t.Context(), tt.name, patch, options))(t)
			same.Values(t, "after removing", &wanted, changed.Spec.ImpersonationProxy)
			_, err := client.MergeCredentialIssuer(t.Context(), tt.name, patch, options)
			if !errors.Is(err, discovery.ErrConflict) {
				t.Errorf("removing from what was read long ago: %v, want a conflict", err)
			}
			back := mergeAs(t, client, changed, must.Get(plan.MergePatch(changed, *before.Spec.ImpersonationProxy))(t))
			same.Values(t, "after putting it back", before.Spec.ImpersonationProxy, back.Spec.ImpersonationProxy)
			if len(back.Annotations) > 0 {
				t.Errorf("after putting it back, the annotations are %v", back.Annotations)
			}
			set := apply(t, client, tt.name, plan.ApplyObject(back, *before.Spec.ImpersonationProxy, plan.Request{}),
				plan.FieldManager)
			again := mergeAs(t, client, set, must.Get(plan.MergePatch(set, wanted))(t))
			same.Values(t, "after removing it again", &wanted, again.Spec.ImpersonationProxy)
		})
	}
}

const crds = "../../../../deploy/crds"

// startCluster starts an API server with the CRDs at path, until the end of the test.
func startCluster(t *testing.T, path string) *discovery.Client {
	t.Helper()
	cluster := testkit.Cluster(t, devcluster.Options{}, path)
	return must.Get(discovery.Connect(rest.CopyConfig(cluster.AdminConfig()), apis.DefaultGroupSuffix))(t)
}

// clusterWithSecret is a real API server with a world's Secret.
type clusterWithSecret struct {
	*discovery.Client
	world *iptlstest.World
}

func (c clusterWithSecret) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	return c.world.Cluster.Secret(ctx, namespace, name)
}

// TestSetWithoutVerification runs against CredentialIssuers of Pinniped, without our fields.
func TestSetWithoutVerification(t *testing.T) {
	t.Parallel()
	client := startCluster(t, crdsWithoutVerification(t))
	w := iptlstest.New(t)
	apply(
		t,
		client,
		"pinniped-concierge-config",
		map[string]any{"spec": map[string]any{"impersonationProxy": map[string]any{
			"mode": "enabled", "service": map[string]any{"type": "None"}, "externalEndpoint": w.Proxy.Endpoint(),
		}}},
		"gitops",
	)
	// The API server publishes the schema shortly after it serves the API.
	testkit.Eventually(t, time.Minute, func() error {
		_, err := client.TLSFields(t.Context())
		return err
	})
	connect := func(factory.ClusterFlags, string) (session.Cluster, func(time.Time) time.Time, error) {
		return clusterWithSecret{client, w}, func(time.Time) time.Time { return time.Time{} }, nil
	}
	for _, want := range []string{"configured", "unchanged"} {
		runSet(t.Context(), w, func(o *SetOptions) {
			o.Flags.Wait, o.Session.Connect = false, connect
		}).Check(t, 0, "credentialissuer/pinniped-concierge-config "+want)
	}
	before := must.Get(client.CredentialIssuer(t.Context(), "pinniped-concierge-config"))(t)
	runSet(t.Context(), w, func(o *SetOptions) {
		o.Certificate.Secret, o.Session.Connect = "shared/wildcard-tls", connect
	}).Check(t, 3, "SecretNotPermitted", `uses only Secrets in its own namespace "pinniped-concierge"`, "Pinniped's")
	after, err := client.CredentialIssuer(t.Context(), "pinniped-concierge-config")
	if err != nil || after.ResourceVersion != before.ResourceVersion || w.HasRead("shared/wildcard-tls") {
		t.Errorf("the Secret was tried: %v", err)
	}
}

// TestSetWithoutTLS checks an old agent without spec.impersonationProxy.tls.
func TestSetWithoutTLS(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	w.Cluster.Fields = []string{}
	runSet(t.Context(), w, nil).Check(t, 3, "its API has no field spec.impersonationProxy.tls")
}

// crdsWithoutVerification writes our CRDs without the field verification.
func crdsWithoutVerification(t *testing.T) string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(crds, "*credentialissuers*"))
	if err != nil || len(paths) != 1 {
		t.Fatalf("%v, %v", paths, err)
	}
	text := must.Get(os.ReadFile(paths[0]))(t)
	var definition map[string]any
	must.Do(t, yaml.Unmarshal(text, &definition))
	if !removeKey(definition, "verification") {
		t.Fatal("there is no field verification")
	}
	text = must.Get(yaml.Marshal(definition))(t)
	path := filepath.Join(t.TempDir(), "crd.yaml")
	must.Do(t, os.WriteFile(path, text, 0o600))
	return path
}

func removeKey(value any, key string) bool {
	found := false
	switch value := value.(type) {
	case map[string]any:
		_, found = value[key]
		delete(value, key)
		for _, inner := range value {
			found = removeKey(inner, key) || found
		}
	case []any:
		for _, inner := range value {
			found = removeKey(inner, key) || found
		}
	}
	return found
}

func apply(
	t *testing.T, client *discovery.Client, name string, object map[string]any, manager string,
) *configv1alpha1.CredentialIssuer {
	t.Helper()
	issuer, err := client.ApplyCredentialIssuer(t.Context(), name, object,
		discovery.ApplyOptions{FieldManager: manager, Force: true})
	if err != nil {
		t.Fatalf("applying as %q: %v", manager, err)
	}
	return issuer
}

func mergeAs(t *testing.T, client *discovery.Client, issuer *configv1alpha1.CredentialIssuer,
	fields map[string]any,
) *configv1alpha1.CredentialIssuer {
	t.Helper()
	return must.Get(client.MergeCredentialIssuer(t.Context(), issuer.Name, fields,
		discovery.ApplyOptions{FieldManager: plan.FieldManager}))(t)
}

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
		return must.Get(client.Secret(t.Context(), namespace, name))(t)
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
