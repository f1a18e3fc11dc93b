package agent

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestKeysAreFew(t *testing.T) {
	t.Parallel()
	if n := len(knobs) + len(fileKeys); n > 30 {
		t.Errorf("the file has %d keys, 30 are enough: can one of them be derived?", n)
	}
}

// TestSettingsOfTheLastRelease starts an agent with a file, flags and variables of the last release. It goes on, as far
// as to what is wrong besides, and tells of them once.
func TestSettingsOfTheLastRelease(t *testing.T) {
	t.Setenv("PINNIPED_AGENT_LIMITS_CONNECTIONS_PER_USER", "7")
	t.Setenv("PINNIPED_AGENT_NAMES_LEADER_ELECTION_LEASE", "own-lease")
	config, err := load(
		t,
		`
limits: {bytes: {perUser: many}}
work: {logins: 0}
accessReviews: {denyTTL: never}
names: {impersonationLastGoodSecret: own-copy}
userAccountsNamespace: people
`,
		"--work-requests-per-user=no", "--limit-unread-per-address=x", "--audit-log-maxsize=0", "--self-check-interval=1s",
		"--name-handed-out-config-map=own-memory",
	)
	if err != nil {
		t.Fatal(err)
	}
	want := ownNames{
		lastGoodSecret:             "own-copy",
		recordSecret:               "pinniped-concierge-credential-issuer-record",
		handedOutConfigMap:         "own-memory",
		lease:                      "own-lease",
		userAccountsServiceAccount: "pinniped-concierge-user-accounts",
		userAccountsNamespace:      "people",
	}
	if diff := cmp.Diff(want, config.ownNames(), cmp.AllowUnexported(ownNames{})); diff != "" {
		t.Errorf("the names that still are in effect (-want +got):\n%s", diff)
	}
	var log strings.Builder
	if err := Run(
		t.Context(), Options{Kubeconfig: filepath.Join(t.TempDir(), "none"), LogOutput: &log}, config,
	); err == nil || !strings.Contains(err.Error(), "none") {
		t.Fatalf("want it to get as far as to the kubeconfig, got %v", err)
	}
	for _, text := range []string{
		`"level":"WARN"`, "remove them, the next release refuses them",
		"--work-requests-per-user, PINNIPED_AGENT_LIMITS_CONNECTIONS_PER_USER", "work.logins", "limits.bytes.perUser",
		"--limit-unread-per-address: no longer configurable; what clients may hold follows from the memory limit of the pod",
		"accessReviews.denyTTL: no longer configurable; it is 500ms",
		"--self-check-interval: no longer configurable; it is 10m",
		"--audit-log-maxsize: no longer configurable; the file is rotated at 100 MiB",
		"names.impersonationLastGoodSecret, --name-handed-out-config-map, PINNIPED_AGENT_NAMES_LEADER_ELECTION_LEASE, " +
			"userAccountsNamespace: no longer configurable; in effect in this release for the last time",
	} {
		if !strings.Contains(log.String(), text) {
			t.Errorf("nothing says %q in\n%s", text, log.String())
		}
	}
	if n := strings.Count(log.String(), "WARN"); n != 1 {
		t.Errorf("want one warning, got %d:\n%s", n, log.String())
	}
}

func TestNoSettingsOfTheLastRelease(t *testing.T) {
	t.Parallel()
	config, err := load(t, peersFile)
	if err != nil {
		t.Fatal(err)
	}
	if len(config.Retired) > 0 {
		t.Errorf("Pinniped's file is said to have %v", config.Retired)
	}
}

func TestNamesFollowAppName(t *testing.T) {
	t.Parallel()
	config, err := load(t, "names: {apiService: other}\n", "--app-name=own")
	if err != nil {
		t.Fatal(err)
	}
	names := config.Names
	if names.CredentialIssuer != "own-config" || names.APIService != "other" ||
		names.ImpersonationSignerSecret != "own-impersonation-proxy-signer-ca-certificate" ||
		config.ownNames().lease != "own" || config.ownNames().userAccountsNamespace != "own-users" ||
		config.AppLabel() != "own" {
		t.Errorf("the names are %+v and %+v, app label %q", names, config.ownNames(), config.AppLabel())
	}
}
