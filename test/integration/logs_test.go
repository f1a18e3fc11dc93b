package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// logLines returns the lines that the replicas have logged since the offsets from, and the new offsets. It excludes
// lines that are still being written.
func (w *world) logLines(from []int) (lines []string, lengths []int, err error) {
	for i, agent := range w.agents {
		content, err := os.ReadFile(agent.Log())
		if err != nil {
			return nil, nil, err
		}
		content = content[:bytes.LastIndexByte(content, '\n')+1]
		lengths = append(lengths, len(content))
		if i < len(from) {
			content = content[min(from[i], len(content)):]
		}
		lines = slices.AppendSeq(lines, strings.Lines(string(content)))
	}
	return lines, lengths, nil
}

// noErrors checks that no line is an error, and that client-go logs nothing.
func noErrors(t *testing.T, lines []string) {
	t.Helper()
	if len(lines) == 0 {
		t.Error("nothing was logged")
	}
	for _, line := range lines {
		if strings.HasPrefix(line, "http2: server: error reading preface from client") {
			continue // the library of the Concierge APIs prints this when a connection is reset that early
		}
		var entry struct{ Level, Msg string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Errorf("%v: %s", err, line)
		}
		if entry.Level == "ERROR" || strings.Contains(entry.Msg, "Unhandled Error") ||
			strings.Contains(line, `{"Namespace"`) {
			t.Errorf("logged: %s", line)
		}
	}
}

// TestAFreshInstallLogsNoError checks the logs of the replicas from their start until they serve. Both start at the
// same time, and one of them does not get the Lease.
func TestAFreshInstallLogsNoError(t *testing.T) {
	w := needsCluster(t)
	noErrors(t, w.freshLog)
}

// TestARestartOfTheAPIServerLogsNoError stops the API server for a while. Users cannot log in meanwhile, but that is
// not an error of the agent.
func TestARestartOfTheAPIServerLogsNoError(t *testing.T) {
	w := needsCluster(t)
	w.generatedOnly(t)
	_, from, err := w.logLines(nil)
	must.Do(t, err)
	must.Do(t, w.Cluster.StopAPIServer())
	time.Sleep(12 * time.Second) // long enough for the leader to lose the Lease
	must.Do(t, w.Cluster.RestartAPIServer(t.Context()))
	testkit.Eventually(t, 40*time.Second, func() error {
		lines, _, err := w.logLines(from)
		if err == nil &&
			!slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, "Became the leader") }) {
			err = errors.New("nobody leads")
		}
		return err
	})
	lines, _, err := w.logLines(from)
	must.Do(t, err)
	noErrors(t, lines)
	t.Cleanup(func() { w.waitForWatches(t) })
	if !slices.ContainsFunc(lines, func(line string) bool {
		return strings.Contains(line, "Lost leadership") && strings.Contains(line, `"WARN"`)
	}) {
		t.Error("no warning tells that leadership was lost")
	}
}

// waitForWatches waits until the agents watch the authenticators again. After an outage, controller-runtime's cache may
// back off for half a minute.
func (w *world) waitForWatches(t *testing.T) {
	t.Helper()
	webhook := &authenticationv1alpha1.WebhookAuthenticator{
		ObjectMeta: metav1.ObjectMeta{Name: "watched"},
		Spec:       authenticationv1alpha1.WebhookAuthenticatorSpec{Endpoint: "https://127.0.0.1:1"},
	}
	jwt := &authenticationv1alpha1.JWTAuthenticator{
		ObjectMeta: metav1.ObjectMeta{Name: "watched"},
		Spec:       authenticationv1alpha1.JWTAuthenticatorSpec{Issuer: "https://127.0.0.1:1", Audience: "a"},
	}
	ctx := context.WithoutCancel(t.Context())
	for object, conditions := range map[client.Object]*[]metav1.Condition{
		webhook: &webhook.Status.Conditions, jwt: &jwt.Status.Conditions,
	} {
		must.Do(t, w.admin.Create(ctx, object))
		deadline := time.Now().Add(time.Minute)
		for len(*conditions) == 0 {
			err := w.admin.Get(ctx, client.ObjectKeyFromObject(object), object)
			if time.Now().After(deadline) {
				t.Fatalf("%T is not followed: %v", object, err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		must.Do(t, w.admin.Delete(ctx, object))
	}
}
