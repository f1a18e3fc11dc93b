package kubeconfig_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// madeFor returns the result of Build for a cluster called name.
func madeFor(tb testing.TB, name, server string) *clientcmdapi.Config {
	tb.Helper()
	config := must.Get(kubeconfig.Build(kubeconfig.Input{
		Source: &kubeconfig.Source{
			ContextName: name, ClusterName: name, UserName: name, Cluster: &clientcmdapi.Cluster{Server: server},
		},
		Server: server,
		Exec: kubeconfig.Exec{
			Command: "pinniped", Static: &kubeconfig.Static{TokenEnv: "T"},
			Concierge: &kubeconfig.Concierge{Endpoint: server},
		},
	}))(tb)
	return config
}

const devItems = `clusters:
- cluster:
    server: https://dev.example.com
  name: dev
`

const devUser = `- name: dev
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1beta1
      args:
      - login
      - static
      - --enable-concierge
      - --concierge-api-group-suffix=
      - --concierge-authenticator-name=
      - --concierge-authenticator-type=
      - --concierge-endpoint=https://dev.example.com
      - --concierge-ca-bundle-data=
      - --token-env=T
      command: pinniped
      env: []
      provideClusterInfo: true
`

// TestMerge compares whole files.
func TestMerge(t *testing.T) {
	t.Parallel()
	const context = "- context:\n    cluster: dev\n    user: dev\n  name: dev\n"
	const compact = `{"cluster":{"server":"https://dev.example.com"},"name":"dev"}`
	for _, test := range []struct {
		name, content string
		setCurrent    bool
		want          string // ITEMS stands for the three lists of the new entries
	}{
		{
			name: "makes a kubeconfig of an empty file",
			want: "apiVersion: v1\nkind: Config\n" + devItems + "contexts:\n" + context + "users:\n" + devUser,
		},
		{
			name: "keeps the comments of a file that has nothing else", content: "# mine\n",
			want: "# mine\napiVersion: v1\nkind: Config\n" + devItems + "contexts:\n" + context + "users:\n" + devUser,
		},
		{
			name: "fills the empty lists that kubectl writes", setCurrent: true,
			content: "apiVersion: v1\nclusters: null\ncontexts: []\ncurrent-context: \"\"\nkind: Config\nusers:   # none\n",
			want: "apiVersion: v1\nclusters: \n" + strings.TrimPrefix(devItems, "clusters:\n") +
				"contexts: \n" + context + "current-context: dev\nkind: Config\nusers:   # none\n" + devUser,
		},
		{
			name: "adds behind the last item, before the comments that follow it",
			content: "kind: Config # one\nusers:\n  # Ann's\n  - name: ann\n    user: {token: x}   # secret\n\n# the clusters\n" +
				"clusters:\n  -\n    name: a\n    cluster:\n      server: https://a.example.com\n  # end\ncontexts:\n- {name: a, context: {cluster: a, user: ann}}",
			want: "kind: Config # one\nusers:\n  # Ann's\n  - name: ann\n    user: {token: x}   # secret\n" + indent(devUser) +
				"\n# the clusters\nclusters:\n  -\n    name: a\n    cluster:\n      server: https://a.example.com\n" +
				indent(strings.TrimPrefix(devItems, "clusters:\n")) +
				"  # end\ncontexts:\n- {name: a, context: {cluster: a, user: ann}}\n" + strings.TrimSuffix(context, "\n"),
		},
		{
			name: "replaces ours where they stand, and keeps what people set in them",
			content: "kind: Config\ncurrent-context: other\nusers:\n- name: dev\n  user:\n    # old\n    exec: {command: /old/pinniped, apiVersion: client.authentication.k8s.io/v1beta1," +
				" args: [login, static], env: [{name: HTTPS_PROXY, value: http://proxy}]}\n- name: z\n  user: {}\n" +
				"contexts:\n- {name: dev, context: {cluster: old, user: dev, namespace: mine}}   # mine\n" +
				"clusters:\n- name: dev\n  cluster:\n    server: https://dev.example.com:443\n# after\n- name: z\n  cluster: {server: https://z}\n",
			want: "kind: Config\ncurrent-context: other\nusers:\n" + strings.NewReplacer(
				"env: []", "env:\n      - name: HTTPS_PROXY\n        value: http://proxy", "    exec:", "    # old\n    exec:",
			).Replace(devUser) + "- name: z\n  user: {}\n" +
				"contexts:\n- {\"context\":{\"cluster\":\"dev\",\"namespace\":\"mine\",\"user\":\"dev\"},\"name\":\"dev\"}   # mine\n" +
				devItems + "# after\n- name: z\n  cluster: {server: https://z}\n",
		},
		{
			name: "adds to JSON", setCurrent: true,
			content: `{"kind": "Config", "clusters": [{"name": "a]", "cluster": {"server": "https://a\"}"}}], "users": [], "contexts": null}`,
			want: `{"current-context": "dev", "kind": "Config", "clusters": [{"name": "a]", "cluster": {"server": "https://a\"}"}}, ` +
				compact + `], "users": [` + compactUser + `], "contexts": [{"context":{"cluster":"dev","user":"dev"},"name":"dev"}]}`,
		},
		{
			name: "stops at the end of the first document", content: "kind: Config\n---\nkind: Other\n",
			want: "kind: Config\n" + devItems + "contexts:\n" + context + "users:\n" + devUser + "---\nkind: Other\n",
		},
		{
			name: "writes line ends as the file has them", content: "kind: Config\r\n",
			want: strings.ReplaceAll("kind: Config\n"+devItems+"contexts:\n"+context+"users:\n"+devUser, "\n", "\r\n"),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			made := madeFor(t, "dev", "https://dev.example.com")
			merged := must.Get(kubeconfig.Merge([]byte(test.content), made, test.setCurrent))(t)
			if diff := cmp.Diff(test.want, string(merged.Content)); diff != "" {
				t.Errorf("content (-want +got):\n%s", diff)
			}
			again, err := kubeconfig.Merge(merged.Content, made, test.setCurrent)
			if err != nil || again.Changed() || !bytes.Equal(again.Content, merged.Content) {
				t.Errorf("want the second merge to change nothing, got %v\n%s", err, again.Content)
			}
		})
	}
}

func indent(lines string) string {
	return "  " + strings.ReplaceAll(strings.TrimSuffix(lines, "\n"), "\n", "\n  ") + "\n"
}

const compactUser = `{"name":"dev","user":{"exec":{"apiVersion":"client.authentication.k8s.io/v1beta1","args":["login",` +
	`"static","--enable-concierge","--concierge-api-group-suffix=","--concierge-authenticator-name=",` +
	`"--concierge-authenticator-type=","--concierge-endpoint=https://dev.example.com","--concierge-ca-bundle-data=",` +
	`"--token-env=T"],"command":"pinniped","env":[],"provideClusterInfo":true}}}`

// TestMergeRefuses has files that Merge rejects.
func TestMergeRefuses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, content, want string }{
		{
			name: "a user of the same name with a credential of another kind", content: "kind: Config\nusers:\n- name: dev\n  user: {token: x}\n",
			want: `existing user "dev" is different`,
		},
		{
			name: "a context of the same name and another user",
			content: "kind: Config\nusers:\n- name: admin\n  user: {token: x}\ncontexts:\n- name: dev\n  context: {cluster: c, user: admin}\n" +
				"clusters:\n- name: c\n  cluster: {server: https://c}\n",
			want: `existing context "dev" is different`,
		},
		{
			name: "a cluster of the same name that another context uses",
			content: "kind: Config\nusers:\n- name: admin\n  user: {token: x}\ncontexts:\n- name: other\n  context: {cluster: dev, user: admin}\n" +
				"clusters:\n- name: dev\n  cluster: {server: https://c}\n",
			want: `context "other" uses it`,
		},
		{name: "merge markers", content: "kind: Config\nclusters:\n<<<<<<< HEAD\nusers:\n", want: "cannot be read"},
		{name: "another kind of file", content: "kind: Pod\n", want: "not a kubeconfig"},
		{name: "a list that is an alias", content: "kind: Config\nclusters: &c []\ncontexts: *c\nusers: []\n", want: "alias"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := kubeconfig.Merge([]byte(test.content), madeFor(t, "dev", "https://dev.example.com"), false)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("want an error with %q, got %v", test.want, err)
			}
		})
	}
}

// TestMergeKeepsRandomFiles creates kubeconfigs in many layouts, merges entries into them, and removes these again: the
// rest must be identical to the original, byte for byte.
func TestMergeKeepsRandomFiles(t *testing.T) {
	t.Parallel()
	for seed := range uint64(400) {
		random := rand.New(rand.NewPCG(seed, 13))
		content, others := randomFile(random)
		merged, err := kubeconfig.Merge([]byte(content), madeFor(t, "dev", "https://dev.example.com"), false)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, content)
		}
		rest := string(merged.Content)
		for part := range strings.SplitSeq(others, "\x00") {
			at := strings.Index(rest, part)
			if at < 0 {
				t.Fatalf("seed %d: this part is gone: %q\nbefore:\n%s\nafter:\n%s", seed, part, content, merged.Content)
			}
			rest = rest[at+len(part):]
		}
		config, err := clientcmd.Load(merged.Content)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if config.Contexts["dev"] == nil || config.Clusters["dev"] == nil || config.AuthInfos["dev"] == nil {
			t.Fatalf("seed %d: an entry is missing:\n%s", seed, merged.Content)
		}
	}
}

// randomFile returns a kubeconfig, and its other entries with NULs in place of ours.
func randomFile(random *rand.Rand) (content, others string) {
	pick := func(all ...string) string { return all[random.IntN(len(all))] }
	eol := pick("\n", "\r\n")
	item := func(kind, name string) string {
		body := map[string]string{
			"cluster": "{server: 'https://" + name + ".example.com', tls-server-name: \"a # b]\"}",
			"user":    "{token: \"t}: [\", extensions: []}",
			"context": "{cluster: x, user: u, namespace: \"{\"}",
		}[kind]
		dash, name := pick("- ", "-   "), pick(name, `"`+name+`"`, "'"+name+"'")
		pad := strings.Repeat(" ", len(dash))
		switch random.IntN(4) {
		case 0:
			return dash + "{name: " + name + ", " + kind + ": " + body + "}" + pick("", "   # flow")
		case 1:
			return dash + kind + ": " + body + pick("", " # behind") + eol + pad + "name: " + name
		case 2:
			return dash + "name: " + name + eol + eol + "# between" + eol + pad + kind + ":" + eol + pad + "  " + body
		}
		return "-" + eol + "  name: " + name + eol + "  " + kind + ": {" + eol + body[1:]
	}
	ours := map[string]string{
		"cluster": "- name: dev" + eol + "  cluster:" + eol + "    server: https://dev.example.com:443",
		"context": "- name: dev" + eol + "  context: # inside" + eol + "    cluster: dev" + eol + "    user: dev",
		"user": "- name: dev" + eol + "  user:" + eol + "    exec:" + eol +
			"      apiVersion: client.authentication.k8s.io/v1beta1" + eol + "      command: pinniped" + eol +
			"      args: [login, static, '--x=#']",
	}
	parts := []string{"# head" + eol + "kind: Config" + eol + pick("", "preferences: {}"+eol)}
	kinds := []string{"cluster", "context", "user"}
	random.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	for _, kind := range kinds {
		indent := pick("", "  ", "    ")
		count, at := random.IntN(4), -1
		if random.IntN(2) == 0 {
			at = random.IntN(count + 1)
		}
		if count == 0 && at < 0 {
			continue // no list of this kind: it is added at the end
		}
		parts = append(parts, pick("", "# of the "+kind+eol, eol)+kind+"s:"+pick("", " # list")+eol)
		for i := range count + 1 {
			if i == at {
				lines := strings.ReplaceAll(indent+ours[kind], eol, eol+indent)
				parts = append(parts, "\x01"+lines+eol+"\x00")
			}
			if i < count {
				lines := strings.ReplaceAll(indent+item(kind, fmt.Sprintf("ü%d", i)), eol, eol+indent)
				parts = append(parts, lines+eol)
				if at < 0 && i+1 == count {
					parts = append(parts, "\x00")
				}
				parts = append(parts, pick("", indent+"# after"+eol, eol, "   "+eol))
			}
		}
	}
	parts = append(parts, pick("", "current-context: x"+eol, "# tail", "# tail"+eol), "\x00")
	content = strings.Join(parts, "")
	// Our entries are between \x01 and \x00.
	var kept strings.Builder
	skipping := false
	for _, r := range content {
		switch r {
		case 1:
			skipping = true
			kept.WriteRune(0)
		case 0:
			if !skipping {
				kept.WriteRune(0)
			}
			skipping = false
		default:
			if !skipping {
				kept.WriteRune(r)
			}
		}
	}
	return strings.NewReplacer("\x00", "", "\x01", "").Replace(content), kept.String()
}

// FuzzMerge merges into unusual and malformed files. Merge either rejects a file, or returns a kubeconfig with our
// entries in which no other byte has changed.
func FuzzMerge(f *testing.F) {
	f.Add([]byte(strings.ReplaceAll(userFile, "${OLD}", oldData)))
	for seed := range uint64(20) {
		content, _ := randomFile(rand.New(rand.NewPCG(seed, 7)))
		f.Add([]byte(content))
	}
	f.Add([]byte("clusters: &c\n- name: a\n  cluster: &d {server: https://a}\n- {name: b, cluster: *d}\nusers: *c\n"))
	f.Add([]byte("---\nkind: Config\n---\nkind: Config\n"))
	f.Add([]byte("\xef\xbb\xbfkind: Config\r\nclusters:\r\n"))
	f.Add(
		[]byte(
			"kind: Config\nusers:\n- name: dev\n  user:\n    exec:\n      args: [login, oidc]\n      installHint: |+\n        # a\n\n        - b\n\n",
		),
	)
	f.Fuzz(func(t *testing.T, content []byte) {
		made := madeFor(t, "dev", "https://dev.example.com")
		merged, err := kubeconfig.Merge(bytes.Clone(content), made, false)
		if err != nil {
			return
		}
		after, err := clientcmd.Load(merged.Content)
		if err != nil {
			t.Fatalf("loading what was written: %v\n%s", err, merged.Content)
		}
		before, err := clientcmd.Load(content)
		if err != nil {
			t.Fatalf("a file that cannot be loaded was merged into: %v", err)
		}
		if after.Clusters["dev"] == nil || after.Clusters["dev"].Server != "https://dev.example.com" {
			t.Errorf("our cluster is missing:\n%s", merged.Content)
		}
		for _, config := range []*clientcmdapi.Config{before, after} {
			delete(config.Clusters, "dev")
			delete(config.AuthInfos, "dev")
			delete(config.Contexts, "dev")
		}
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("something else changed (-before +after):\n%s", diff)
		}
		again, err := kubeconfig.Merge(merged.Content, made, false)
		if err != nil || again.Changed() || !bytes.Equal(again.Content, merged.Content) {
			t.Errorf("want the second merge to change nothing, got %v, %v", again, err)
		}
	})
}

// TestMergeFile has many programs merge into one new file concurrently: it contains all entries, and readers never see
// a partial file.
func TestMergeFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), ".kube", "config")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const count = 12
	var group sync.WaitGroup
	for i := range count {
		group.Go(func() {
			made := madeFor(t, fmt.Sprintf("c%d", i), fmt.Sprintf("https://c%d.example.com", i))
			if _, err := kubeconfig.MergeFile(ctx, path, made, i == 0); err != nil {
				t.Error(err)
			}
			if _, err := kubeconfig.Load(path); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	config := must.Get(kubeconfig.Load(path))(t)
	if len(config.Clusters) != count || len(config.AuthInfos) != count || len(config.Contexts) != count ||
		config.CurrentContext != "c0" {
		t.Errorf("an entry is lost: %v", config)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("want a file of mode 0600, got %v, %v", info.Mode(), err)
	}
}

// TestStaleLock has a lock that was never removed.
func TestStaleLock(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "it's")
	must.Do(t, os.WriteFile(path+".lock", nil, 0o600))
	made := madeFor(t, "dev", "https://dev.example.com")
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := kubeconfig.MergeFile(short, path, made, false)
	if err == nil || !strings.Contains(err.Error(), "another program is changing") ||
		!errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("want a new lock waited for, got %v", err)
	}
	old := time.Now().Add(-time.Hour)
	must.Do(t, os.Chtimes(path+".lock", old, old))
	_, err = kubeconfig.MergeFile(t.Context(), path, made, false)
	if err == nil || !strings.Contains(err.Error(), "has existed for 1h0m") {
		t.Fatalf("want the old lock explained, got %v", err)
	}
	var hinter interface{ Hint() string }
	if !errors.As(err, &hinter) {
		t.Fatal("there is no hint")
	}
	_, command, _ := strings.Cut(hinter.Hint(), "run: ")
	runShell(t, command)
	if _, err := kubeconfig.MergeFile(t.Context(), path, made, false); err != nil {
		t.Errorf("after the hint was followed: %v", err)
	}
}

func runShell(t *testing.T, command string) {
	t.Helper()
	if output, err := exec.CommandContext(t.Context(), "sh", "-c", command).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, output)
	}
}

// changedByHand is a generated kubeconfig to which a user has added comments and an argument.
const changedByHand = "# mine\n" + `apiVersion: v1
kind: Config
clusters:
- cluster:
    # through the office
    proxy-url: http://proxy.example.com
    server: https://dev.example.com # not prod
  name: dev
contexts:
- context: {cluster: dev, user: dev}
  name: dev
` + "users:\n" + devUser

// TestMergeKeepsComments updates an entry with comments.
func TestMergeKeepsComments(t *testing.T) {
	t.Parallel()
	made := madeFor(t, "dev", "https://dev.example.com")
	made.Clusters["dev"].CertificateAuthorityData = []byte("A")
	text := strings.Replace(changedByHand, "      - --token-env=T\n", "      # on the shared disk\n"+
		"      - --credential-cache=/shared/c.yaml\n      - --token-env=OLD # of the pipeline\n", 1)
	merged := must.Get(kubeconfig.Merge([]byte(text), made, false))(t)
	for _, want := range []string{
		"# mine\n", "    # through the office\n    proxy-url: http://proxy.example.com\n", "server: https://dev.example.com # not prod\n",
		"      # on the shared disk\n      - --credential-cache=/shared/c.yaml\n", "- --token-env=T # of the pipeline\n",
	} {
		if !strings.Contains(string(merged.Content), want) {
			t.Errorf("want %q in:\n%s", want, merged.Content)
		}
	}
}

// TestMergeRefusesRelativeCaches has a plugin with a relative cache path.
func TestMergeRefusesRelativeCaches(t *testing.T) {
	t.Parallel()
	made := madeFor(t, "dev", "https://dev.example.com")
	for argument, refused := range map[string]bool{
		"--credential-cache=c.yaml": true, "--session-cache=./s.yaml": true, "--session-cache=sub/s.yaml": true,
		"--credential-cache=~/c.yaml": false, "--credential-cache=/c.yaml": false, "--credential-cache=": false,
	} {
		flags := "      - --token-env=OLD\n      - " + argument + "\n"
		text := strings.Replace(changedByHand, "      - --token-env=T\n", flags, 1)
		_, err := kubeconfig.Merge([]byte(text), made, false)
		if (err != nil) != refused || refused && !strings.Contains(err.Error(), argument) {
			t.Errorf("%s: %v", argument, err)
		}
	}
}

// mergerVariable makes this test binary merge into the kubeconfig at this path until it is killed.
const mergerVariable = "KUBECONFIG_TEST_MERGER"

func TestMain(m *testing.M) {
	if path := os.Getenv(mergerVariable); path != "" {
		mergeForever(path)
	}
	os.Exit(m.Run())
}

func mergeForever(path string) {
	for i := 0; ; i++ {
		source := &kubeconfig.Source{
			ContextName: "dev", ClusterName: "dev", UserName: "dev",
			Cluster: &clientcmdapi.Cluster{Server: "https://dev.example.com"},
		}
		made, err := kubeconfig.Build(kubeconfig.Input{
			Source: source, Exec: kubeconfig.Exec{Command: "pinniped", Static: &kubeconfig.Static{TokenEnv: fmt.Sprint("T", i)}},
		})
		if err == nil {
			_, err = kubeconfig.MergeFile(context.Background(), path, made, false)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// TestMergeIsKilled kills a process at a random time during a merge: the kubeconfig is valid and keeps its other
// entries.
func TestMergeIsKilled(t *testing.T) {
	t.Parallel()
	const head, tail = "# Ann's\nkind: Config\n", "users: []\n# the end\n"
	path := filepath.Join(t.TempDir(), "config")
	must.Do(t, os.WriteFile(path, []byte(head+tail), 0o600))
	wrote := 0
	for i := range 25 {
		before := must.Get(os.ReadFile(path))(t)
		command := exec.CommandContext(t.Context(), os.Args[0])
		command.Env = append(os.Environ(), mergerVariable+"="+path)
		var stderr strings.Builder
		command.Stderr = &stderr
		must.Do(t, command.Start())
		time.Sleep(time.Duration(20+7*i) * time.Millisecond)
		_ = command.Process.Kill()
		_ = command.Wait() // it was killed
		after := must.Get(os.ReadFile(path))(t)
		if !strings.HasPrefix(string(after), head) || !strings.Contains(string(after), "# the end\n") {
			t.Fatalf("kill %d: the file has lost something:\n%s", i, after)
		}
		if _, err := kubeconfig.Load(path); err != nil {
			t.Fatalf("kill %d: %v", i, err)
		}
		if stderr.Len() > 0 {
			t.Fatalf("kill %d: %s", i, &stderr)
		}
		if string(before) != string(after) {
			wrote++
		}
		_ = os.Remove(path + ".lock") // as the error about a stale lock says
	}
	if wrote == 0 {
		t.Error("no process has written anything: nothing was tried")
	}
}

// made returns a kubeconfig for a cluster whose installer uses the same names everywhere.
func made(t *testing.T, server, uid string, bundle []byte) *clientcmdapi.Config {
	t.Helper()
	config := must.Get(kubeconfig.Build(kubeconfig.Input{
		Source: &kubeconfig.Source{
			ContextName: "kubernetes-admin@kubernetes", ClusterName: "kubernetes", UserName: "kubernetes-admin",
			Cluster: &clientcmdapi.Cluster{Server: server},
		},
		Server: server, CABundle: bundle,
		Exec: kubeconfig.Exec{
			Command: "pinniped", Static: &kubeconfig.Static{TokenEnv: "T"},
			Concierge: &kubeconfig.Concierge{Endpoint: server, CABundle: bundle},
		},
	}))(t)
	if uid != "" {
		must.Do(t, kubeconfig.SetInstallation(config, uid))
	}
	return config
}

func TestMergeOfAnotherCluster(t *testing.T) {
	t.Parallel()
	one, two := ca(t, "one"), ca(t, "two")
	const a, b = "https://a.example.com", "https://b.example.com"
	both := append(append([]byte{}, one...), two...)
	for _, test := range []struct {
		name         string
		before, next *clientcmdapi.Config
		refuses      bool
	}{
		{name: "another endpoint", before: made(t, a, "", one), next: made(t, b, "", two), refuses: true},
		{name: "another endpoint with the company's CA", before: made(t, a, "", one), next: made(t, b, "", one), refuses: true},
		{name: "the same endpoint with another CA", before: made(t, a, "", one), next: made(t, a, "", two), refuses: true},
		{name: "another installation at the endpoint", before: made(t, a, "x", one), next: made(t, a, "y", one), refuses: true},
		{name: "a new endpoint of the installation", before: made(t, a, "x", one), next: made(t, b, "x", two)},
		{name: "the same endpoint with both CAs", before: made(t, a, "", one), next: made(t, a, "x", both)},
		{name: "the same again", before: made(t, a, "x", one), next: made(t, a, "x", one)},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			file := must.Get(kubeconfig.Merge(nil, test.before, false))(t)
			merged, err := kubeconfig.Merge(file.Content, test.next, false)
			other, refused := errors.AsType[*kubeconfig.OtherClusterError](err)
			if refused != test.refuses || !refused && err != nil {
				t.Fatalf("got %v", err)
			}
			if refused {
				if !strings.Contains(err.Error(), other.There) || !strings.Contains(err.Error(), other.New) {
					t.Errorf("it does not name both endpoints: %v", err)
				}
				return
			}
			again, err := kubeconfig.Merge(merged.Content, test.next, false)
			if err != nil || again.Changed() {
				t.Errorf("a second time: %v", err)
			}
		})
	}
}

// TestMergeKeepsWhatPeopleAdd shows that additions of users stay when an entry is updated.
func TestMergeKeepsWhatPeopleAdd(t *testing.T) {
	t.Parallel()
	one, two := ca(t, "one"), ca(t, "two")
	file := must.Get(kubeconfig.Merge(nil, made(t, "https://a.example.com", "", one), false))(t)
	text := strings.NewReplacer(
		"    server:", "    proxy-url: http://proxy\n    disable-compression: true\n    tls-server-name: inner\n"+
			"    extensions: [{name: mine, extension: {a: b}}]\n    server:",
		"      - --token-env=T\n", "      - --credential-cache=/tmp/c\n      - --token-env=T\n",
		"      provideClusterInfo: true", "      interactiveMode: Never\n      provideClusterInfo: true",
	).Replace(string(file.Content))
	both := append(append([]byte{}, one...), two...)
	merged := must.Get(kubeconfig.Merge([]byte(text), made(t, "https://a.example.com", "", both), false))(t)
	for _, kept := range []string{
		"proxy-url: http://proxy", "disable-compression: true", "tls-server-name: inner", "name: mine",
		"- --credential-cache=/tmp/c", "interactiveMode: Never",
	} {
		if !strings.Contains(string(merged.Content), kept) {
			t.Errorf("%q is gone:\n%s", kept, merged.Content)
		}
	}
}

// TestDamagedKubeconfigs shows that errors name the entry and the line, and contain no value.
func TestDamagedKubeconfigs(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, content, says string }{
		{"two of one name", "clusters:\n- {name: a, cluster: {server: x}}\n- {name: a, cluster: {server: y}}\n", `line 4: cluster "a" already exists on line 3`},
		{"a number as name", "clusters:\n- {name: 1e3, cluster: {server: x}}\n", `line 3: YAML does not read the name of this cluster as text: put it in quotes, "1e3"`},
		{"base64 in several lines", "users:\n- name: u\n  user:\n    client-key-data: c2VjcmV0\n      c2VjcmV0\n", `line 5: client-key-data of user "u" is not valid base64`},
		{"a mapping in place of a list", "clusters: {secret: secret}\nusers: []\n", "clusters: not a list"},
		{"a tab", "clusters:\n- name: a\n\tcluster: secret\nusers: []\n", "line 3"},
	} {
		_, err := kubeconfig.Merge(
			[]byte("kind: Config\n"+test.content),
			made(t, "https://a.example.com", "", ca(t, "a")),
			false,
		)
		if !errors.Is(err, kubeconfig.ErrDamaged) || !strings.Contains(err.Error(), test.says) ||
			strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "c2Vj") {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}
