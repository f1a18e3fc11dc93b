package factory_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

// TestKubeconfigHints checks the hint for each cause of a missing cluster.
func TestKubeconfigHints(t *testing.T) {
	t.Parallel()
	const give, choose, fix = "set the cluster's kubeconfig", "choose a context", "fix the file first"
	const cluster = "clusters: [{name: a, cluster: {server: 'https://a.example.com'}}]\nusers: [{name: a, user: {}}]\n"
	for name, test := range map[string]struct {
		text    string // kubeconfig; "-" for none
		context string
		want    string
	}{
		"no file":                      {text: "-", want: give},
		"an empty file":                {want: give},
		"text":                         {text: "hello", want: give},
		"a damaged file":               {text: "kind: Config\nclusters: [{name: a, cluster: {server: [1]}}]\n", want: fix},
		"no contexts":                  {text: cluster, want: give},
		"no current context":           {text: cluster + "contexts: [{name: a, context: {cluster: a, user: a}}]\n", want: choose},
		"another context":              {text: cluster + "contexts: [{name: a, context: {cluster: a, user: a}}]\n", context: "b", want: choose},
		"a context that leads nowhere": {text: cluster + "contexts: [{name: a, context: {cluster: x, user: a}}]\ncurrent-context: a\n", want: give},
		"one of many that leads nowhere": {
			text:    cluster + "contexts: [{name: a, context: {cluster: x, user: a}}, {name: b, context: {cluster: a, user: a}}]\n",
			context: "a", want: choose,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "config")
			if test.text != "-" {
				write(t, path, test.text)
			}
			for _, flags := range []factory.ClusterFlags{{Kubeconfig: path}, {}} {
				flags.Context = test.context
				_, err := newFactory(map[string]string{"KUBECONFIG": path}, "").Cluster(flags)
				if err == nil || !strings.HasPrefix(ui.HintOf(err), test.want) {
					t.Errorf("want %q, got %v, hint %q", test.want, err, ui.HintOf(err))
				}
			}
		})
	}
}
