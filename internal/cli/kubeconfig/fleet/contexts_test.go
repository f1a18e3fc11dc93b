package fleet

import (
	"encoding/base64"
	"fmt"
	"path/filepath"
	"testing"
)

// TestContexts checks that in a large file only the entries of the chosen contexts are rotated.
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
	result, err := Run(t.Context(), o)
	if err != nil || outcomes(result)["big"] != "rotated" || west.asked.Load() != 0 {
		t.Fatalf("%v, %v; west was asked %d times", outcomes(result), err, west.asked.Load())
	}
	if got := read(t, path); got != big(east.both(), west.old.CertPEM()) {
		t.Errorf("the file is\n%s", got)
	}
}
