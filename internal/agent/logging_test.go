package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestNoLevelShowsBodies reads and writes a Secret at the highest log level.
func TestNoLevelShowsBodies(t *testing.T) { //nolint:paralleltest // it sets the process's logger
	secret := &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"},
		StringData: map[string]string{"tls.key": "the-private-key"},
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(secret)
	}))
	t.Cleanup(api.Close)
	t.Cleanup(klog.CaptureState().Restore)
	var logged bytes.Buffer
	logger := must.Get(setUpLogging(LogConfig{Level: "all"}, &logged))(t)
	client := corev1client.NewForConfigOrDie(&rest.Config{Host: api.URL, BearerToken: "the-token"}).Secrets("ns")
	for name, ctx := range map[string]context.Context{
		"the agent's logger": klog.NewContext(t.Context(), logger), "the global logger": t.Context(),
	} {
		if _, err := client.Create(ctx, secret, metav1.CreateOptions{}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := client.Get(ctx, "s", metav1.GetOptions{}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	if !strings.Contains(logged.String(), "/api/v1/namespaces/ns/secrets") {
		t.Errorf("want requests in the log, got %s", logged.String())
	}
	for _, hidden := range []string{"the-private-key", "the-token"} {
		if strings.Contains(logged.String(), hidden) {
			t.Errorf("%q is in the log: %s", hidden, logged.String())
		}
	}
}

// TestEveryLineIsStructured logs with every logger of the process: each line is JSON, and libraries do not log at level
// info.
func TestEveryLineIsStructured(t *testing.T) { // not parallel: the loggers of libraries are global
	t.Cleanup(klog.CaptureState().Restore)
	for level, want := range map[string]int{"info": 1, "debug": 4} {
		out := &testkit.Buffer{}
		logger := must.Get(setUpLogging(LogConfig{Level: level}, out))(t)
		logger.Info("Did something")
		logger.V(2).Info("Decided something")
		klog.Info("a library")
		log.Print("http2: another library\n")
		klog.Flush()
		lines := 0
		for line := range strings.Lines(out.String()) {
			var entry struct{ Time, Level, Msg string }
			if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.Msg == "" || entry.Time == "" {
				t.Errorf("%s: not a structured line: %q", level, line)
			}
			lines++
		}
		if lines != want {
			t.Errorf("%s: got %d lines, want %d:\n%s", level, lines, want, out)
		}
	}
}

func TestOpeningTheAuditLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	policy := filepath.Join(dir, "policy.yaml")
	must.Do(t, os.WriteFile(
		policy,
		[]byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"),
		0o600,
	))
	for _, test := range []struct {
		name   string
		config AuditConfig
		opened bool
		err    string
	}{
		{"is off by default", AuditConfig{}, false, ""},
		{"writes to the standard output", AuditConfig{PolicyFile: policy, LogPath: "-"}, true, ""},
		{
			"writes to a file",
			AuditConfig{PolicyFile: policy, LogPath: filepath.Join(dir, "audit.log")},
			true,
			"",
		},
		{
			"says that the policy is missing",
			AuditConfig{PolicyFile: filepath.Join(dir, "none"), LogPath: "-"},
			false,
			"reading the audit policy",
		},
		{
			"says that the file cannot be written",
			AuditConfig{PolicyFile: policy, LogPath: filepath.Join(dir, "none", "audit.log")},
			false, "opening the audit log",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			log, closeFile, err := test.config.open(io.Discard)
			defer closeFile()
			if (log != nil) != test.opened || (err == nil) != (test.err == "") ||
				err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("got %v, %v", log, err)
			}
		})
	}
}
