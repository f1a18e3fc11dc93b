package fleet

import (
	"encoding/base64"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// TestContexts shows that only what the chosen contexts use is rotated, in one big file, and that --into leaves the
// original alone.
func TestContexts(t *testing.T) {
	t.Parallel()
	east, west := newProxy(t), newProxy(t)
	entry := func(name string, p *proxy, bundle []byte) string {
		return fmt.Sprintf("- name: %s\n  cluster: {server: %q, certificate-authority-data: %q}\n",
			name, p.URL, base64.StdEncoding.EncodeToString(bundle))
	}
	big := func(eastBundle, westBundle []byte) string {
		return "kind: Config\ncontexts:\n- {name: prod/east, context: {cluster: east}}\n- {name: test/west, context: {cluster: west}}\n" +
			"clusters:\n" + entry(
			"east",
			east,
			eastBundle,
		) + entry(
			"west",
			west,
			westBundle,
		)
	}
	before := big(east.old.CertPEM(), west.old.CertPEM())
	path := write(t, filepath.Join(t.TempDir(), "big"), before)
	o := options(path)
	o.Contexts = []string{"prod*"}
	o.Places[0].(*Files).Contexts = o.Contexts
	o.Into = IntoFolder{filepath.Join(t.TempDir(), "new")}
	result, err := Run(t.Context(), o)
	if err != nil || outcomes(result)["big"] != "rotated" || west.asked.Load() != 0 {
		t.Fatalf("%v, %v; west was asked %d times", outcomes(result), err, west.asked.Load())
	}
	if read(t, path) != before {
		t.Error("the original was changed")
	}
	if got := read(t, filepath.Join(o.Into.(IntoFolder).Path, "big")); got != big(east.both(), west.old.CertPEM()) {
		t.Errorf("the copy is\n%s", got)
	}
}

// TestIntoOneFile merges rotated kubeconfigs into one, and refuses two that have different entries of one name.
func TestIntoOneFile(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	folder, big := t.TempDir(), filepath.Join(t.TempDir(), "config")
	named := func(name string, bundle []byte) string {
		return strings.NewReplacer("ann", name, "proxy", "proxy-"+name, "{name: c,", "{name: "+name+",").
			Replace(login(p.URL, bundle))
	}
	for _, name := range []string{"ann", "ben"} {
		write(t, filepath.Join(folder, name), named(name, p.old.CertPEM()))
	}
	o := options(folder)
	o.Into = &IntoContexts{Path: big}
	result, err := Run(t.Context(), o)
	if err != nil || outcomes(result)["ann"] != "rotated" || outcomes(result)["ben"] != "rotated" {
		t.Fatalf("%v, %v", outcomes(result), err)
	}
	config, err := kubeconfig.Load(big)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ann", "ben"} {
		cluster := config.Clusters["proxy-"+name]
		if cluster == nil || string(cluster.CertificateAuthorityData) != string(p.both()) || config.Contexts[name] == nil {
			t.Errorf("of %s there is %+v", name, cluster)
		}
	}
	write(
		t,
		filepath.Join(folder, "twin"),
		strings.Replace(named("ann", p.old.CertPEM()), "login, static", "login, static, --token=x", 1),
	)
	o.Into = &IntoContexts{Path: big}
	o.Concurrency = 1
	if result, err = Run(t.Context(), o); err != nil || outcomes(result)["twin"] != "failed" {
		t.Errorf("with two of one name: %v, %v", outcomes(result), err)
	}
}

func restored(t *testing.T, journal string) *Result {
	t.Helper()
	j, err := OpenJournal(journal, false, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = j.Close() }()
	o := options()
	o.Journal = j
	result, err := Undo(t.Context(), o, func(string) (Place, error) {
		return &Files{LockTimeout: time.Second, Hidden: func(string) {}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// TestUndo takes a rotation back byte for byte, what was changed since excepted.
func TestUndo(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	folder, journal := t.TempDir(), filepath.Join(t.TempDir(), "journal")
	before := login(p.URL, p.old.CertPEM())
	for _, name := range []string{"a", "b", "c"} {
		write(t, filepath.Join(folder, name), before)
	}
	j, err := OpenJournal(journal, true, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	o := options(folder)
	o.Journal = j
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenJournal(journal, true, time.Now); err == nil || !strings.Contains(err.Error(), "another run") {
		t.Errorf("opened twice: %v", err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if content := read(t, journal); strings.Contains(content, "exec") || !strings.Contains(content, journalVersion) {
		t.Errorf("the journal has more than CA bundles:\n%s", content)
	}
	// One was changed by its owner, in another place; another has a newer bundle.
	write(t, filepath.Join(folder, "b"), strings.Replace(login(p.URL, p.both()), "# a comment", "# mine", 1))
	write(t, filepath.Join(folder, "c"), login(p.URL, p.new.CertPEM()))
	if diff := cmp.Diff(map[string]string{
		"a": "rotated", "b": "rotated", "c": "skipped proxy:Changed ann:Changed",
	}, outcomes(restored(t, journal))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, content := range map[string]string{
		"a": before, "b": strings.Replace(before, "# a comment", "# mine", 1), "c": login(p.URL, p.new.CertPEM()),
	} {
		if read(t, filepath.Join(folder, name)) != content {
			t.Errorf("%s is now\n%s", name, read(t, filepath.Join(folder, name)))
		}
	}
	if again := restored(t, journal); len(again.Items) != 0 {
		t.Errorf("a second undo did %v", outcomes(again))
	}
}
