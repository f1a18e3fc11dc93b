package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/discoverytest"
	"github.com/pinniped-toolkit/pinniped/test/oidctest"
	"github.com/pinniped-toolkit/pinniped/test/resulttest"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"pinniped": main, "browser": browse})
}

type serverKey struct{}

// TestScripts runs the scripts in testdata/script. Each has its own API server with a user pinny, a CredentialIssuer, a
// WebhookAuthenticator, and an administrator's kubeconfig admin.yaml. ca.pem is the API server's CA; cert.pem and
// key.pem are for proxy.example.com, issued by other-ca.pem.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "../../testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("UPDATE_GOLDEN") != "",
		Setup:               setUp,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"agent":    agentCommand,
			"await":    awaitCommand,
			"cluster":  clusterCommand,
			"code":     codeCommand,
			"mode":     modeCommand,
			"within":   withinCommand,
			"envsubst": envsubstCommand,
			"issuer":   issuerCommand,
			"timeless": timelessCommand,
			"valid":    validCommand,
		},
	})
}

func setUp(env *testscript.Env) error {
	server, err := discoverytest.New(apis.DefaultGroupSuffix)
	if err != nil {
		return err
	}
	env.Defer(server.Close)
	server.Users["pinny:password123"] = discoverytest.User{Name: "pinny", Groups: []string{"group-for-mtls"}}
	for _, object := range []any{
		discoverytest.Issuer(apis.DefaultGroupSuffix, "pinniped-concierge-config",
			discoverytest.FailedStrategy(
				configv1alpha1.StrategyKubeClusterSigningCertificate, configv1alpha1.ReasonCouldNotFetchKey, "no key here",
			),
			discoverytest.ProxyStrategy(server.URL, server.CA.CertPEM())),
		discoverytest.Webhook(apis.DefaultGroupSuffix, "local-user-authenticator"),
	} {
		if err := server.Put(object); err != nil {
			return err
		}
	}
	env.Values[serverKey{}] = server
	if err := clientcmd.WriteToFile(*server.Kubeconfig(), filepath.Join(env.WorkDir, "admin.yaml")); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(env.WorkDir, "ca.pem"), server.CA.CertPEM(), 0o600); err != nil {
		return err
	}
	other, err := certs.NewCA("another CA", time.Now(), time.Hour)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(env.WorkDir, "other-ca.pem"), other.CertPEM(), 0o600); err != nil {
		return err
	}
	pair, err := other.IssueServing(certs.SANs{DNSNames: []string{"proxy.example.com"}}, time.Now(), 30*time.Minute)
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{"cert.pem": pair.CertPEM, "key.pem": pair.KeyPEM} {
		if err := os.WriteFile(filepath.Join(env.WorkDir, name), content, 0o600); err != nil {
			return err
		}
	}
	home := filepath.Join(env.WorkDir, "home")
	env.Vars = append(
		env.Vars,
		"HOME="+home,
		"SERVER="+server.URL,
		"ENDPOINT="+strings.TrimPrefix(server.URL, "https://"),
		"CA_DATA="+server.CAData(),
		"CA_SHA256="+certs.Fingerprint(server.CA.Certificate().Raw),
		"CA_NOT_BEFORE="+server.CA.Certificate().NotBefore.UTC().Format(time.RFC3339),
		"CA_NOT_AFTER="+server.CA.Certificate().NotAfter.UTC().Format(time.RFC3339),
		"OTHER_CA_DATA="+base64.StdEncoding.EncodeToString(other.CertPEM()),
	)
	return os.MkdirAll(home, 0o700)
}

// clusterCommand changes the API server:
//
//	cluster put FILE           stores an object, with environment variables expanded
//	cluster delete PATH        deletes an object
//	cluster uninstall          removes all our APIs
//	cluster forbid VERB RESOURCE
//	cluster groups GROUP...    changes pinny's groups
//	cluster exchanges N        checks the number of TokenCredentialRequests
//	cluster revoke             rejects the credentials issued so far
//	cluster requests N PATH    checks the number of requests for a path
func clusterCommand(ts *testscript.TestScript, neg bool, args []string) {
	server, _ := ts.Value(serverKey{}).(*discoverytest.Server)
	if neg || len(args) == 0 {
		ts.Fatalf("usage: cluster put|delete|uninstall|forbid|groups|exchanges|revoke|requests")
	}
	switch args[0] {
	case "put":
		var object map[string]any
		text := os.Expand(ts.ReadFile(args[1]), ts.Getenv)
		ts.Check(yaml.Unmarshal([]byte(text), &object))
		ts.Check(server.Put(object))
	case "delete":
		server.Delete(args[1])
	case "uninstall":
		server.Uninstall()
	case "forbid":
		server.Forbid(args[1], args[2])
	case "revoke":
		server.Revoke()
	case "requests":
		n := 0
		for _, request := range server.Requests() {
			if request.Path == args[2] {
				n++
			}
		}
		if got := fmt.Sprint(n); got != args[1] {
			ts.Fatalf("want %s requests for %s, got %s", args[1], args[2], got)
		}
	case "groups":
		server.SetUser("pinny:password123", discoverytest.User{Name: "pinny", Groups: args[1:]})
	case "exchanges":
		if got := fmt.Sprint(server.Exchanges()); got != args[1] {
			ts.Fatalf("want %s TokenCredentialRequests, got %s", args[1], got)
		}
	default:
		ts.Fatalf("unknown cluster command %q", args[0])
	}
}

// codeCommand runs a command and checks its exit code: code 2 pinniped get. The output is in code.stdout and
// code.stderr.
func codeCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N command [args...]")
	}
	err := ts.Exec(args[1], args[2:]...)
	stdout, stderr := ts.ReadFile("stdout"), ts.ReadFile("stderr")
	ts.Check(os.WriteFile(ts.MkAbs("code.stdout"), []byte(stdout), 0o600))
	ts.Check(os.WriteFile(ts.MkAbs("code.stderr"), []byte(stderr), 0o600))
	got := "0"
	if err != nil {
		got = strings.TrimPrefix(err.Error(), "exit status ")
	}
	if got != args[0] {
		ts.Fatalf("want exit code %s, got %s", args[0], got)
	}
}

// validCommand checks that a file, or stdout, is a valid object of package result.
func validCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: valid stdout|FILE")
	}
	text := ts.ReadFile(args[0])
	if err := resulttest.Validate([]byte(text)); err != nil {
		ts.Fatalf("%v:\n%s", err, text)
	}
}

// modeCommand checks a file's permissions: mode 0600 FILE.
func modeCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: mode PERMISSIONS FILE")
	}
	info, err := os.Stat(ts.MkAbs(args[1]))
	ts.Check(err)
	if got := fmt.Sprintf("%04o", info.Mode().Perm()); got != args[0] {
		ts.Fatalf("want mode %s, got %s", args[0], got)
	}
}

// withinCommand checks that a directory contains a file with a matching name, or with ! none: within PATTERN DIR.
func withinCommand(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: [!] within PATTERN DIR")
	}
	pattern, err := regexp.Compile(args[0])
	ts.Check(err)
	found := false
	entries, err := os.ReadDir(ts.MkAbs(args[1]))
	ts.Check(err)
	for _, entry := range entries {
		found = found || pattern.MatchString(entry.Name())
	}
	if found == neg {
		ts.Fatalf("file that matches %q in %s: %v", args[0], args[1], found)
	}
}

// envsubstCommand expands environment variables in a file.
func envsubstCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: envsubst FILE")
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(os.Expand(ts.ReadFile(args[0]), ts.Getenv)), 0o600))
}

// issuerCommand controls an OpenID Connect issuer with a user ann. The cluster accepts its ID tokens for the audience
// "cluster" or the client's.
//
//	issuer start               starts it, sets $ISSUER and $ISSUER_CA_DATA; the program "browser" logs in as ann
//	issuer supervisor          makes it a Pinniped Supervisor with password logins
//	issuer rotate-keys         rotates its signing key
//	issuer end-sessions        deletes all sessions
//	issuer count N TEXT        checks the number of requests that contain TEXT
func issuerCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: issuer start|supervisor|rotate-keys|end-sessions|count")
	}
	if args[0] == "start" {
		issuer, err := oidctest.New()
		ts.Check(err)
		ts.Defer(issuer.Close)
		server, _ := ts.Value(serverKey{}).(*discoverytest.Server)
		server.Login = func(token string) (discoverytest.User, bool) {
			ann := discoverytest.User{Name: "ann", Groups: []string{"developers"}}
			return ann, issuer.Accepts(token, oidctest.ClientID) || issuer.Accepts(token, "cluster")
		}
		ts.Setenv("ISSUER", issuer.URL)
		ts.Setenv("ISSUER_CA_DATA", base64.StdEncoding.EncodeToString(issuer.CA.CertPEM()))
		ts.Check(os.WriteFile(ts.MkAbs("issuer-ca.pem"), issuer.CA.CertPEM(), 0o600))
		ts.Setenv("BROWSER", "browser "+ts.MkAbs("page.html"))
		issuers.Store(ts, issuer)
		ts.Defer(func() { issuers.Delete(ts) })
		return
	}
	value, _ := issuers.Load(ts)
	issuer, ok := value.(*oidctest.Issuer)
	if !ok {
		ts.Fatalf("there is no issuer yet")
	}
	switch args[0] {
	case "supervisor":
		issuer.Supervisor = true
	case "rotate-keys":
		ts.Check(issuer.RotateKeys())
	case "end-sessions":
		issuer.EndSessions()
	case "count":
		if got := fmt.Sprint(issuer.Count(args[2])); got != args[1] {
			ts.Fatalf("want %s requests with %q, got %s: %q", args[1], args[2], got, issuer.Requests())
		}
	default:
		ts.Fatalf("unknown issuer command %q", args[0])
	}
}

// issuers maps running scripts to their issuers. It is a package variable because the values of a script's environment
// are fixed at its start.
var issuers sync.Map

// browse is the program "browser": it opens an address like a browser, and writes the page to a file.
func browse() {
	bundle, err := base64.StdEncoding.DecodeString(os.Getenv("ISSUER_CA_DATA"))
	if err == nil {
		var text string
		if text, err = oidctest.Browse(context.Background(), bundle, os.Args[2]); err == nil {
			if err = os.WriteFile(os.Args[1]+".new", []byte(text), 0o600); err == nil {
				err = os.Rename(os.Args[1]+".new", os.Args[1]) // for await
			}
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// awaitCommand waits for a file from a program that may still run, such as the browser: await FILE.
func awaitCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: await FILE")
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		_, err := os.Stat(ts.MkAbs(args[0]))
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%v", err)
		}
	}
}

// timelessCommand writes stdout or stderr to a file without times, for cmp: timeless stdout FILE. Times of the last
// hour become NOW, and durations 0s.
func timelessCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: timeless stdout|stderr FILE")
	}
	text := regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`).
		ReplaceAllStringFunc(ts.ReadFile(args[0]), func(text string) string {
			at, err := time.Parse(time.RFC3339, text)
			ts.Check(err)
			if age := time.Since(at); age < -time.Minute || age > time.Hour { // the clock may be set back
				return text
			}
			return "NOW"
		})
	text = regexp.MustCompile(`after [0-9.]+m?s\b`).ReplaceAllString(text, "after 0s")
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(text), 0o600))
}
