package hack

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestManifestsOfARelease creates them twice: they are identical, and all of them name the image.
func TestManifestsOfARelease(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("../bin/helm"); testing.Short() || err != nil {
		t.Skipf("needs helm, which make bin/helm builds: %v", err)
	}
	const name = "registry.example.com:5000/team/pinniped-agent"
	image := name + "@sha256:" + strings.Repeat("1", 64)
	files := map[string][]byte{}
	for range 2 {
		folder := t.TempDir()
		command := exec.CommandContext(t.Context(), "./manifests.sh", folder, image)
		command.Env = append(os.Environ(), "VERSION=v1.2.3", "HOME="+t.TempDir())
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, file := range []string{
			"install.yaml", "upgrade.yaml", "crds.yaml", "credentialissuer.yaml", "local-user-authenticator.yaml",
			"pinniped-concierge-1.2.3.tgz", "pinniped-deploy_1.2.3.tar.gz",
		} {
			content, err := os.ReadFile(filepath.Join(folder, file))
			if err != nil {
				t.Fatal(err)
			}
			if before, again := files[file]; again && !bytes.Equal(before, content) {
				t.Errorf("made again, %s is another file", file)
			}
			files[file] = content
		}
	}
	unpack := func(archive, file string) string {
		command := exec.CommandContext(t.Context(), "tar", "-xzOf", "-", file)
		command.Stdin = bytes.NewReader(files[archive])
		out, err := command.Output()
		if err != nil {
			t.Errorf("reading %s of %s: %v", file, archive, err)
		}
		return string(out)
	}
	digest := "newName: " + name + "\n  digest: sha256:" + strings.Repeat("1", 64) + "\n"
	for text, want := range map[string]string{
		string(files["install.yaml"]):                                                                "image: " + image,
		string(files["upgrade.yaml"]):                                                                "image: " + image,
		string(files["local-user-authenticator.yaml"]):                                               "image: " + image,
		unpack("pinniped-concierge-1.2.3.tgz", "pinniped-concierge/values.yaml"):                     "\nimage: " + image + "\n",
		unpack("pinniped-concierge-1.2.3.tgz", "pinniped-concierge/Chart.yaml"):                      "appVersion: v1.2.3\n",
		unpack("pinniped-deploy_1.2.3.tar.gz", "deploy/concierge/kustomization.yaml"):                digest,
		unpack("pinniped-deploy_1.2.3.tar.gz", "deploy/local-user-authenticator/kustomization.yaml"): digest,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q in\n%.2000s", want, text)
		}
	}
}
