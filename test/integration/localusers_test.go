package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/testkit"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
)

// TestTheHowToOnLocalUsers types the shell blocks of docs/howto/local-users.md, and logs in with the user that they make.
func TestTheHowToOnLocalUsers(t *testing.T) {
	w := needsCluster(t)
	w.generatedOnly(t)
	text, err := os.ReadFile(filepath.Join(w.Deploy, "..", "docs", "howto", "local-users.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```shell\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(blocks) != 2 {
		t.Fatalf("there are %d shell blocks", len(blocks))
	}
	script := "set -euo pipefail\n"
	for _, block := range blocks {
		script += block[1]
	}
	// This machine may have no htpasswd, so the hash is made here, of what the block gives that program to read.
	const password = "correct horse:battery"
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	programs := t.TempDir()
	stub := fmt.Sprintf(
		"#!/bin/sh\n[ \"$*\" = '-niBC 10 ann' ] && [ \"$(cat)\" = '%s' ] && echo 'ann:%s'\n",
		password,
		hash,
	)
	if err := os.WriteFile(
		filepath.Join(programs, "htpasswd"),
		[]byte(stub),
		0o700,
	); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(w.kubectl, filepath.Join(programs, "kubectl")); err != nil {
		t.Fatal(err)
	}
	environment := []string{
		"PATH=" + programs + string(filepath.ListSeparator) + os.Getenv("PATH"), "KUBECONFIG=" + w.Cluster.AdminKubeconfig(),
	}
	got := w.runWith(t, environment, strings.NewReader(password+"\n"), "bash", "-c", script)
	if got.code != 0 {
		t.Fatalf("bash ended with %d: %s%s", got.code, got.out, got.errOut)
	}
	// There is no cluster DNS here, so the webhook is reached where this cluster has it.
	name := types.NamespacedName{Name: "local-users"}
	var authenticator authenticationv1alpha1.WebhookAuthenticator
	testkit.Eventually(t, 20*time.Second, func() error {
		if err := w.admin.Get(t.Context(), name, &authenticator); err != nil {
			return err
		}
		authenticator.Spec.Endpoint = w.users.Endpoint()
		return w.admin.Update(t.Context(), &authenticator)
	})
	testkit.Eventually(t, 60*time.Second, func() error {
		if err := w.admin.Get(t.Context(), name, &authenticator); err != nil {
			return err
		}
		if authenticator.Status.Phase != authenticationv1alpha1.PhaseReady {
			return fmt.Errorf("phase %q: %v", authenticator.Status.Phase, authenticator.Status.Conditions)
		}
		return nil
	})
	path := filepath.Join(t.TempDir(), "ann.yaml")
	w.succeed(t, w.cli, "get", "kubeconfig", "--kubeconfig="+w.Cluster.AdminKubeconfig(), "--static-token=ann:"+password,
		"--concierge-authenticator-type=webhook", "--concierge-authenticator-name=local-users", "-o", path)
	out := w.succeed(t, w.cli, "whoami", "--kubeconfig="+path)
	for _, want := range []string{"ann", "developers", "admins"} {
		if !strings.Contains(out, want) {
			t.Errorf("whoami does not say %q:\n%s", want, out)
		}
	}
	if err := w.admin.Delete(t.Context(), &authenticator); err != nil {
		t.Fatal(err)
	}
}
