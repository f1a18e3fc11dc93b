package kubeconfig_test

import (
	"strings"
	"testing"

	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

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
	text := strings.Replace(
		changedByHand,
		"      - --token-env=T\n",
		"      # on the shared disk\n      - --credential-cache=/shared/c.yaml\n      - --token-env=OLD # of the pipeline\n",
		1,
	)
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
		text := strings.Replace(
			changedByHand,
			"      - --token-env=T\n",
			"      - --token-env=OLD\n      - "+argument+"\n",
			1,
		)
		_, err := kubeconfig.Merge([]byte(text), made, false)
		if (err != nil) != refused || refused && !strings.Contains(err.Error(), argument) {
			t.Errorf("%s: %v", argument, err)
		}
	}
}
