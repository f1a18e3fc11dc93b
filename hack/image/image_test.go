package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// TestTwoBuildsOneDigest builds a program twice, in two directories, for two platforms, and compares the digests.
func TestTwoBuildsOneDigest(t *testing.T) {
	t.Parallel()
	first, second := options{}, options{}
	for _, o := range []*options{&first, &second} {
		o.name, o.version = "registry.example.com/hello", "v1.2.3"
		o.layout = filepath.Join(t.TempDir(), "layout")
		o.programs = []string{buildHello(t, "amd64", "v1"), buildHello(t, "arm64", "v1")}
		if err := o.run(t.Context(), io.Discard); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(layoutDigests(t, first.layout), layoutDigests(t, second.layout)); diff != "" {
		t.Errorf("two builds differ (-first +second):\n%s", diff)
	}
	second.programs[0] = buildHello(t, "amd64", "v2")
	if err := second.run(t.Context(), io.Discard); err != nil {
		t.Fatal(err)
	}
	if cmp.Equal(layoutDigests(t, first.layout), layoutDigests(t, second.layout)) {
		t.Error("another program gave the same image")
	}
}

// TestPushed pushes to a registry, and reads what a node and a scanner read.
func TestPushed(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(registry.New(registry.WithReferrersSupport(true)))
	t.Cleanup(server.Close)
	repository := strings.TrimPrefix(server.URL, "http://") + "/team/hello"
	o := options{name: repository, version: "v1.2.3", revision: "abc123", push: true}
	o.programs = []string{buildHello(t, "amd64", "v1"), buildHello(t, "arm64", "v1")}
	var printed bytes.Buffer
	if err := o.run(t.Context(), &printed); err != nil {
		t.Fatal(err)
	}

	pinned, err := name.NewDigest(strings.TrimSpace(printed.String()))
	if err != nil {
		t.Fatalf("what was printed is no image with a digest: %v", err)
	}
	index, err := remote.Index(pinned)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	for _, architecture := range []string{"amd64", "arm64"} {
		image, err := remote.Image(pinned, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: architecture}))
		if err != nil {
			t.Fatal(err)
		}
		checkImage(t, image, architecture)
		checkReferrer(t, pinned.Context(), image)
	}
}

func checkImage(t *testing.T, image v1.Image, architecture string) {
	t.Helper()
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Architecture != architecture || config.OS != "linux" {
		t.Errorf("got %s/%s, want linux/%s", config.OS, config.Architecture, architecture)
	}
	want := v1.Config{User: "65532:65532", Entrypoint: []string{"/hello"}, WorkingDir: "/", Labels: config.Config.Labels}
	if diff := cmp.Diff(want, config.Config); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	if got := config.Config.Labels["org.opencontainers.image.version"]; got != "v1.2.3" {
		t.Errorf("label version: got %q", got)
	}
	// The programs are built without a commit, as in a git worktree.
	if got := config.Config.Labels["org.opencontainers.image.revision"]; got != "abc123" {
		t.Errorf("label revision: got %q", got)
	}
	files := tar.NewReader(mutate.Extract(image))
	header, err := files.Next()
	if err != nil {
		t.Fatal(err)
	}
	if header.Name != "hello" || header.Mode != 0o555 {
		t.Errorf("got file %q with mode %o, want hello with 555", header.Name, header.Mode)
	}
	if _, err := files.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("the image holds more than the program: %v", err)
	}
}

func checkReferrer(t *testing.T, repository name.Repository, image v1.Image) {
	t.Helper()
	digest, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	referrers, err := remote.Referrers(repository.Digest(digest.String()))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := referrers.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 1 || manifest.Manifests[0].ArtifactType != string(cycloneDX) {
		t.Fatalf("got referrers %+v, want one SBOM", manifest.Manifests)
	}
	artifact, err := remote.Image(repository.Digest(manifest.Manifests[0].Digest.String()))
	if err != nil {
		t.Fatal(err)
	}
	layers, err := artifact.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("got %d layers (%v), want 1", len(layers), err)
	}
	content, err := layers[0].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close() //nolint:errcheck // it is read to its end
	if document, err := io.ReadAll(content); err != nil || string(document) != sbom {
		t.Errorf("got %q, %v, want the SBOM", document, err)
	}
}

// TestTar reads the file like `kind load image-archive`: the image has the version's tag and the name in
// deploy/concierge. A second build writes the same file.
func TestTar(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "bin", "hello.tar")
	o := options{name: "registry.example.com/hello", version: "v1.2.3", revision: "abc123", tar: file}
	o.programs = []string{buildHello(t, runtime.GOARCH, "v1")}
	if err := o.run(t.Context(), io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, tag := range []string{"v1.2.3", "latest"} {
		named, err := name.NewTag("registry.example.com/hello:" + tag)
		if err != nil {
			t.Fatal(err)
		}
		image, err := tarball.ImageFromPath(file, &named)
		if err != nil {
			t.Fatal(err)
		}
		checkImage(t, image, runtime.GOARCH)
	}
	first, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if err := o.run(t.Context(), io.Discard); err != nil {
			t.Fatal(err)
		}
		if again, err := os.ReadFile(file); err != nil || !bytes.Equal(first, again) {
			t.Fatalf("written again, it is another file (%v)", err)
		}
	}
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	text := filepath.Join(t.TempDir(), "hello")
	if err := os.WriteFile(text, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "thesis.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	hello := buildHello(t, runtime.GOARCH, "v1")
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	for _, test := range []struct {
		name, want string
		options    options
	}{
		{name: "no program", want: "no PROGRAM", options: options{name: "a/b", version: "v1"}},
		{name: "a program that Go has not built", want: "build information of", options: options{
			name: "a/b", version: "v1", programs: []string{text},
		}},
		{name: "a version that is no tag", want: "-name and -version", options: options{
			name: "a/b", version: "v1 devel", programs: []string{hello},
		}},
		{name: "a folder of something else", want: "holds no image", options: options{
			name: "a/b", version: "v1", layout: full, programs: []string{hello},
		}},
		{name: "a tar without a program for this machine", want: "linux/" + runtime.GOARCH, options: options{
			name: "a/b", version: "v1", tar: filepath.Join(t.TempDir(), "x.tar"), programs: []string{buildHello(t, other, "v1")},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if err := test.options.run(t.Context(), io.Discard); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want one with %q", err, test.want)
			}
		})
	}
	if _, err := os.Stat(filepath.Join(full, "thesis.txt")); err != nil {
		t.Error("the folder of something else was removed")
	}
}

// TestOnABase adds a program to an image from a registry: the base's content stays, and the program is on the PATH.
func TestOnABase(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(registry.New(registry.WithReferrersSupport(true)))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	tag, err := name.NewTag(host + "/tools/git:v2")
	if err != nil {
		t.Fatal(err)
	}
	index, err := random.Index(100, 2, 1)
	if err != nil {
		t.Fatal(err)
	}
	shell, err := random.Image(100, 2)
	if err != nil {
		t.Fatal(err)
	}
	config := v1.Config{Entrypoint: []string{"git"}, Env: []string{"PATH=/usr/local/bin:/bin"}}
	if shell, err = mutate.Config(shell, config); err != nil {
		t.Fatal(err)
	}
	index = mutate.AppendManifests(index, mutate.IndexAddendum{
		Add: shell, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "arm64"}},
	})
	if err := remote.WriteIndex(tag, index); err != nil {
		t.Fatal(err)
	}
	o := options{name: host + "/team/hello", version: "v1.2.3", base: tag.Name(), push: true}
	o.programs = []string{buildHello(t, "arm64", "v1")}
	if err := o.run(t.Context(), io.Discard); err != nil {
		t.Fatal(err)
	}
	pushed, err := remote.Image(tag.Context().Registry.Repo("team", "hello").Tag("v1.2.3"),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: "arm64"}))
	if err != nil {
		t.Fatal(err)
	}
	file, err := pushed.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := shell.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if got := file.Config; got.Entrypoint != nil || !cmp.Equal(got.Cmd, []string{"hello", "--help"}) ||
		!cmp.Equal(got.Env, config.Env) || got.Labels["org.opencontainers.image.base.digest"] != digest.String() {
		t.Errorf("got %+v", got)
	}
	layers, err := pushed.Layers()
	if err != nil || len(layers) != 3 {
		t.Fatalf("got %d layers, %v; want two of the base and one", len(layers), err)
	}
	content, err := layers[2].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	if header, err := tar.NewReader(content).Next(); err != nil || header.Name != "usr/local/bin/hello" {
		t.Errorf("the last layer has %v, %v", header, err)
	}
	if o.base = tag.Context().Tag("none").Name(); o.run(t.Context(), io.Discard) == nil {
		t.Error("a base that is not there was taken")
	}
}

const sbom = `{"bomFormat": "CycloneDX"}`

// buildHello builds a program in a new directory, with its SBOM.
func buildHello(t *testing.T, architecture, says string) string {
	t.Helper()
	folder := t.TempDir()
	for file, content := range map[string]string{
		"go.mod":         "module example.com/hello\n\ngo 1.26\n",
		"main.go":        "package main\n\nfunc main() { println(\"" + says + "\") }\n",
		"hello.cdx.json": sbom,
	} {
		if err := os.WriteFile(filepath.Join(folder, file), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	command := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", "hello", ".")
	command.Dir = folder
	command.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+architecture, "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return filepath.Join(folder, "hello")
}

// layoutDigests returns all digests in index.json of the layout.
func layoutDigests(t *testing.T, folder string) []string {
	t.Helper()
	path, err := layout.FromPath(folder)
	if err != nil {
		t.Fatal(err)
	}
	index, err := path.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var digests []string
	for _, m := range manifest.Manifests {
		digests = append(digests, m.Digest.String())
	}
	if len(digests) == 0 {
		t.Fatal("the layout names nothing")
	}
	return digests
}
