package discovery_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
)

// TestOnARealAPIServer checks that a real API server's responses are understood as those of discoverytest are, such as
// an API that is not installed versus an object that does not exist.
func TestOnARealAPIServer(t *testing.T) {
	t.Parallel()
	cluster := testkit.Cluster(t, devcluster.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	connectAs := func(config *rest.Config) *discovery.Client {
		t.Helper()
		client, err := discovery.Connect(config, apis.DefaultGroupSuffix)
		if err != nil {
			t.Fatal(err)
		}
		return client
	}
	admin := connectAs(cluster.AdminConfig())
	check := func(what string, err, want error, says string) {
		t.Helper()
		if !errors.Is(err, want) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: want an error that is %q and says %q, got %v", what, want, says, err)
		}
	}

	_, err := admin.CredentialIssuer(ctx, "")
	check("listing before the installation", err, discovery.ErrNotInstalled, "config.concierge.pinniped.dev/v1alpha1")
	_, err = admin.CredentialIssuer(ctx, "one")
	check("reading before the installation", err, discovery.ErrNotInstalled, "config.concierge.pinniped.dev/v1alpha1")
	_, err = admin.Authenticator(ctx, "", "")
	check(
		"authenticators before the installation",
		err,
		discovery.ErrNotInstalled,
		"authentication.concierge.pinniped.dev/v1alpha1",
	)
	_, err = admin.AgentNamespace(ctx)
	check(
		"the agent's namespace before the installation",
		err,
		discovery.ErrNotInstalled,
		"APIService v1alpha1.login.concierge.pinniped.dev",
	)
	_, err = admin.WhoAmI(ctx)
	check("who am I before the installation", err, discovery.ErrNotInstalled, "identity.concierge.pinniped.dev")
	_, err = admin.Secret(ctx, "default", "nope")
	check("a missing Secret", err, discovery.ErrNotFound, `reading secrets "nope" in namespace "default": not found`)

	if err := cluster.Install(ctx, filepath.Join("..", "..", "deploy", "crds")); err != nil {
		t.Fatal(err)
	}
	_, err = admin.CredentialIssuer(ctx, "")
	check("listing after the installation", err, discovery.ErrNoCredentialIssuer, "")
	_, err = admin.CredentialIssuer(ctx, "one")
	check(
		"reading after the installation",
		err,
		discovery.ErrNotFound,
		`credentialissuers.config.concierge.pinniped.dev "one": not found`,
	)
	_, err = admin.Authenticator(ctx, discovery.Webhook, "")
	check("authenticators after the installation", err, discovery.ErrNotFound, "no WebhookAuthenticator in the cluster")

	spec := func(mode string) map[string]any {
		return map[string]any{
			"spec": map[string]any{
				"impersonationProxy": map[string]any{"mode": mode, "service": map[string]any{"type": "None"}},
			},
		}
	}
	if _, err := admin.ApplyCredentialIssuer(
		ctx,
		"one",
		spec("enabled"),
		discovery.ApplyOptions{FieldManager: "a"},
	); err != nil {
		t.Fatal(err)
	}
	if issuer, err := admin.CredentialIssuer(
		ctx,
		"",
	); err != nil || issuer.Name != "one" ||
		issuer.Spec.ImpersonationProxy.Mode != "enabled" {
		t.Errorf("want the applied CredentialIssuer, got %+v, %v", issuer, err)
	}
	_, err = admin.ApplyCredentialIssuer(ctx, "one", spec("disabled"), discovery.ApplyOptions{FieldManager: "b"})
	check(
		"applying another's field",
		err,
		discovery.ErrConflict,
		`applying credentialissuers.config.concierge.pinniped.dev "one"`,
	)

	jane, err := cluster.User("jane")
	if err != nil {
		t.Fatal(err)
	}
	nobody := connectAs(jane)
	_, err = nobody.CredentialIssuer(ctx, "")
	check(
		"listing without permission",
		err,
		discovery.ErrForbidden,
		"not permitted to list credentialissuers.config.concierge.pinniped.dev",
	)
	_, err = nobody.Secret(ctx, "default", "nope")
	check(
		"reading a Secret without permission",
		err,
		discovery.ErrForbidden,
		`not permitted to get secrets "nope" in namespace "default"`,
	)
	_, err = nobody.ApplyCredentialIssuer(
		ctx,
		"one",
		spec("disabled"),
		discovery.ApplyOptions{FieldManager: "b", Force: true},
	)
	check(
		"applying without permission",
		err,
		discovery.ErrForbidden,
		"not permitted to patch credentialissuers.config.concierge.pinniped.dev",
	)

	unrelated := rest.AnonymousClientConfig(cluster.AdminConfig())
	unrelated.BearerToken = "not-a-token"
	_, err = connectAs(unrelated).CredentialIssuer(ctx, "")
	check("a token that is none", err, discovery.ErrUnauthorized, "")

	distrustful := rest.CopyConfig(cluster.AdminConfig())
	distrustful.CAData = testCA(t)
	distrustful.CAFile = ""
	_, err = connectAs(distrustful).CredentialIssuer(ctx, "")
	check("a wrong CA bundle", err, discovery.ErrUnreachable, "certificate signed by unknown authority")
}
