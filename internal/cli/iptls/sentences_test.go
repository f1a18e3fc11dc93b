package iptls_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/change"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/check"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/delegate"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/status"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
	"github.com/pinniped-toolkit/pinniped/test/sessiontest"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// decision is the decision of a command, without texts.
type decision struct {
	Exit     int      `json:"exit"`
	Action   string   `json:"action"`
	Codes    []string `json:"codes"`    // of the findings, with severities
	Steps    []string `json:"steps"`    // states
	Problems int      `json:"problems"` // their number
	Spec     string   `json:"spec"`     // final Secret and verification
}

// otherWords is the environment variable with the output path of the inner test.
const otherWords = "PINNIPED_TEST_OTHER_WORDS"

// TestSentencesDecideNothing checks that commands decide by codes and not by the texts of messages. It runs them a
// second time with a pkg/certs in which every message has another text, and expects the same decisions.
func TestSentencesDecideNothing(t *testing.T) {
	t.Parallel()
	if path := os.Getenv(otherWords); path != "" {
		if f := certs.NewFinding(certs.Expired, "some words"); f.Message == "some words" {
			t.Fatal("the sentences are the usual ones")
		}
		encoded := must.Get(json.Marshal(decisions(t)))(t)
		must.Do(t, os.WriteFile(path, encoded, 0o600))
		return
	}
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skipf("it builds a second pkg/certs: %v", err)
	}
	path := filepath.Join(t.TempDir(), "decisions.json")
	inner := exec.CommandContext(t.Context(), tool, "test", "-count=1", "-overlay", overlay(t), "-run", "^"+t.Name()+"$",
		".")
	inner.Env = append(os.Environ(), otherWords+"="+path)
	if out, err := inner.CombinedOutput(); err != nil {
		t.Fatalf("with other sentences: %v\n%s", err, out)
	}
	encoded := must.Get(os.ReadFile(path))(t)
	var other map[string]decision
	must.Do(t, json.Unmarshal(encoded, &other))
	if diff := cmp.Diff(decisions(t), other); diff != "" {
		t.Errorf("decisions change with the sentences (-usual +other):\n%s", diff)
	}
}

// overlay writes a copy of pkg/certs with other messages, and returns the path of the JSON file for `go test -overlay`.
func overlay(t *testing.T) string {
	t.Helper()
	sources := must.Get(filepath.Glob("../../../pkg/certs/*.go"))(t)
	directory, replaced := t.TempDir(), map[string]string{}
	sentences := 0
	for _, source := range sources {
		if strings.HasSuffix(source, "_test.go") {
			continue
		}
		files := token.NewFileSet()
		file := must.Get(parser.ParseFile(files, source, nil, parser.ParseComments))(t)
		before := sentences
		ast.Inspect(file, func(n ast.Node) bool {
			pair, ok := n.(*ast.KeyValueExpr)
			if !ok {
				return true
			}
			key, ok := pair.Key.(*ast.Ident)
			if ok && slices.Contains([]string{"Message", "Hint", "Cause", "Consequence", "Fix"}, key.Name) {
				pair.Value = &ast.CallExpr{Fun: ast.NewIdent("inOtherWords"), Args: []ast.Expr{pair.Value}}
				sentences++
			}
			return true
		})
		if sentences == before {
			continue
		}
		var text bytes.Buffer
		must.Do(t, format.Node(&text, files, file))
		written := filepath.Join(directory, filepath.Base(source))
		absolute := must.Get(filepath.Abs(source))(t)
		replaced[absolute] = written
		must.Do(t, os.WriteFile(written, text.Bytes(), 0o600))
	}
	if sentences < len(certs.Codes()) {
		t.Fatalf("only %d sentences of the catalogue were found", sentences)
	}
	const words = `package certs

import "strings"

// inOtherWords keeps the length of a text, and none of its words.
func inOtherWords(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return 'a' + (r-'a'+13)%26
		case r >= 'A' && r <= 'Z':
			return 'A' + (r-'A'+13)%26
		default:
			return r
		}
	}, text)
}
`
	written := filepath.Join(directory, "inotherwords.go")
	must.Do(t, os.WriteFile(written, []byte(words), 0o600))
	absolute := must.Get(filepath.Abs("../../../pkg/certs/inotherwords.go"))(t)
	replaced[absolute] = written
	encoded := must.Get(json.Marshal(map[string]any{"Replace": replaced}))(t)
	listed := filepath.Join(directory, "overlay.json")
	must.Do(t, os.WriteFile(listed, encoded, 0o600))
	return listed
}

// agentSays returns text as a message of the agent, or another text in the inner test.
func agentSays(text string) string {
	if os.Getenv(otherWords) != "" {
		return "quite something else"
	}
	return text
}

// short is the --timeout of commands that wait for an event that never happens.
const short = 2 * time.Second

func flags() change.Flags { return change.Flags{DryRun: session.DryRunNone, Wait: true} }

func set(s *session.Session, secret string, allow ...string) *change.SetOptions {
	return &change.SetOptions{
		Session: s,
		Flags:   flags(),
		Certificate: session.CertificateFlags{
			Secret: secret, Allow: append(allow, "OldClientsBreak"), Changed: iptlstest.Given(),
		},
	}
}

// decisions runs commands in separate worlds, and returns their decisions.
func decisions(t *testing.T) map[string]decision {
	t.Helper()
	type command = func(*session.Session) factory.Command
	external := func(t *testing.T) *iptlstest.World {
		t.Helper()
		w := iptlstest.NewExternalWorld(t)
		w.Obey(t)
		return w
	}
	fresh := func(t *testing.T) *iptlstest.World {
		t.Helper()
		w := iptlstest.New(t)
		w.Obey(t)
		return w
	}
	with := func(adapt func(*testing.T, *iptlstest.World)) func(*testing.T) *iptlstest.World {
		return func(t *testing.T) *iptlstest.World {
			t.Helper()
			w := fresh(t)
			adapt(t, w)
			return w
		}
	}
	otherName := func(t *testing.T, w *iptlstest.World) {
		t.Helper()
		pair := iptlstest.Serving(t, w.CA, certs.SANs{DNSNames: []string{"other.example.com"}})
		w.Cluster.TLSSecret.Data["tls.crt"], w.Cluster.TLSSecret.Data["tls.key"] = pair.CertPEM, pair.KeyPEM
	}
	otherCA := func(t *testing.T, w *iptlstest.World) {
		t.Helper()
		w.Cluster.TLSSecret.Data["ca.crt"] = iptlstest.NewCA(t, "Other CA").CertPEM()
	}
	next := func(t *testing.T) *iptlstest.World {
		t.Helper()
		w := external(t)
		ca := iptlstest.NewCA(t, "Next CA")
		w.Put("next-tls", iptlstest.Serving(t, ca, iptlstest.Loopback()), ca.CertPEM())
		return w
	}
	nowhere := t.TempDir()
	look := func(s *session.Session) factory.Command {
		return &status.Options{Session: s, KubeconfigsFrom: []string{nowhere}}
	}
	fails := func(w *iptlstest.World, reason configv1alpha1.StrategyReason) {
		w.Cluster.Issuer.Status.Strategies = []configv1alpha1.CredentialIssuerStrategy{
			iptlstest.FailedReport(reason, agentSays("disk full")),
		}
	}
	found := map[string]decision{}
	worlds := []struct {
		name  string
		world func(*testing.T) *iptlstest.World
		run   []command
	}{
		{"set", fresh, []command{func(s *session.Session) factory.Command { return set(s, "proxy-tls") }}},
		{"set twice", fresh, []command{
			func(s *session.Session) factory.Command { return set(s, "proxy-tls") },
			func(s *session.Session) factory.Command { return set(s, "proxy-tls") },
		}},
		{"set of no Secret", fresh, []command{func(s *session.Session) factory.Command { return set(s, "nothing") }}},
		{
			"set of another name", with(otherName),
			[]command{func(s *session.Session) factory.Command { return set(s, "proxy-tls") }},
		},
		{
			"set of another name, allowed", with(otherName),
			[]command{func(s *session.Session) factory.Command { return set(s, "proxy-tls", "NameNotCovered") }},
		},
		{
			"set of another CA", with(otherCA),
			[]command{func(s *session.Session) factory.Command { return set(s, "proxy-tls") }},
		},
		{"set of another CA, allowed", with(otherCA), []command{
			func(s *session.Session) factory.Command { return set(s, "proxy-tls", "BundleDoesNotVerify") },
		}},
		{"set that a proxy does not follow", with(func(_ *testing.T, w *iptlstest.World) {
			w.Cluster.AfterApply = func(c *iptlstest.Cluster) { c.Report(w.Proxy.URL(), w.CA.CertPEM()) }
		}), []command{func(s *session.Session) factory.Command {
			s.Timeout = short
			return set(s, "proxy-tls", "NameNotCovered")
		}}},
		{"set that the agent refuses", with(func(_ *testing.T, w *iptlstest.World) {
			w.Cluster.AfterApply = func(*iptlstest.Cluster) { fails(w, configv1alpha1.ReasonErrorDuringSetup) }
		}), []command{func(s *session.Session) factory.Command { s.Timeout = short; return set(s, "proxy-tls") }}},
		{
			"set of another namespace", fresh,
			[]command{func(s *session.Session) factory.Command { return set(s, "shared/proxy-tls") }},
		},
		{"unset and undo", external, []command{
			func(s *session.Session) factory.Command { return &change.UnsetOptions{Session: s, Flags: flags()} },
			func(s *session.Session) factory.Command { return &change.UndoOptions{Session: s, Flags: flags()} },
		}},
		{"set of the next CA", next, []command{func(s *session.Session) factory.Command { return set(s, "next-tls") }}},
		{"status", external, []command{look}},
		{
			"status of a failure",
			with(func(_ *testing.T, w *iptlstest.World) { fails(w, configv1alpha1.ReasonErrorDuringSetup) }),
			[]command{look},
		},
		{
			"status of a proxy that is off",
			with(func(_ *testing.T, w *iptlstest.World) { fails(w, configv1alpha1.ReasonDisabled) }),
			[]command{look},
		},
		{"check", with(otherName), []command{func(s *session.Session) factory.Command {
			return &check.Options{
				Session:     s,
				Certificate: session.CertificateFlags{Secret: "proxy-tls", Changed: iptlstest.Given("secret")},
				Timeline:    true,
			}
		}}},
		{"explain", fresh, []command{func(s *session.Session) factory.Command {
			return &delegate.ExplainOptions{Session: s, Grant: delegate.Grant{Secret: "shared/proxy-tls"}}
		}}},
	}
	var lock sync.Mutex
	t.Run("in worlds", func(t *testing.T) {
		for _, tt := range worlds {
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				w := tt.world(t)
				for i, command := range tt.run {
					d := decide(t.Context(), t, w, command)
					lock.Lock()
					found[fmt.Sprintf("%s %d", tt.name, i+1)] = d
					lock.Unlock()
				}
			})
		}
	})
	return found
}

// decide runs a command, and returns the parts of its result that are not texts.
func decide(
	ctx context.Context, t *testing.T, w *iptlstest.World, command func(*session.Session) factory.Command,
) decision {
	t.Helper()
	r := sessiontest.Run(ctx, w, func(s *session.Session) factory.Command {
		s.Output = "json"
		return command(s)
	})
	d := decision{Exit: ui.ExitCodeOf(r.Err)}
	if spec := w.Cluster.Issuer.Spec.ImpersonationProxy; spec.TLS != nil {
		d.Spec = spec.TLS.SecretName + " " + string(spec.TLS.Verification)
	}
	if r.Out.Len() == 0 {
		return d
	}
	var result map[string]any
	if err := json.Unmarshal(r.Out.Bytes(), &result); err != nil {
		t.Fatalf("%v in %s", err, r.Out.String())
	}
	d.read(result)
	return d
}

// read collects the codes, states and counts in a result.
func (d *decision) read(value any) {
	switch value := value.(type) {
	case []any:
		for _, one := range value {
			d.read(one)
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			switch inner := value[key]; key {
			case "permitted", "outcome", "answer", "inEffect", "phase", "nextStep", "breaks", "ok", "exitCode":
				d.Action += fmt.Sprintf("%s=%v ", key, inner)
			case "code":
				d.Codes = append(d.Codes, fmt.Sprintf("%v %v %v", inner, value["severity"], value["allowed"]))
			case "state":
				d.Steps = append(d.Steps, fmt.Sprint(inner))
			case "problem", "problems", "waitsFor":
				d.Problems++
			default:
				d.read(inner)
			}
		}
	}
}
