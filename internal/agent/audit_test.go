package agent

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

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
