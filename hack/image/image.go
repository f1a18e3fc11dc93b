package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	user      = "65532:65532" // as in deploy/concierge/deployment.yaml
	cycloneDX = types.MediaType("application/vnd.cyclonedx+json")
	source    = "https://github.com/pinniped-toolkit/pinniped"
)

// program is a Go program with its build info. Its SBOM is the file path+".cdx.json".
type program struct {
	path, version string
	info          *debug.BuildInfo
}

func readProgram(path, version string) (*program, error) {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the build information of %q: %w", path, err)
	}
	return &program{path: path, version: version, info: info}, nil
}

// setting returns a build setting such as GOOS, GOARCH, vcs.revision or vcs.time, or "" if it is unknown.
func (p *program) setting(key string) string {
	for _, s := range p.info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// built is an image for one platform, and its SBOM.
type built struct {
	platform v1.Platform
	image    v1.Image
	sbom     v1.Image // its subject is image (OCI 1.1)
}

// base is an image from a registry to which programs are added.
type base struct {
	name   string
	digest string
	image  v1.Image // for one platform
}

// pullBase pulls the image for a platform.
func pullBase(ctx context.Context, from string, platform v1.Platform) (*base, error) {
	ref, err := name.ParseReference(from)
	if err != nil {
		return nil, err
	}
	image, err := remote.Image(ref, remote.WithContext(ctx), remote.WithPlatform(platform),
		remote.WithAuthFromKeychain(authn.DefaultKeychain))
	if err != nil {
		return nil, err
	}
	digest, err := image.Digest()
	if err != nil {
		return nil, err
	}
	return &base{name: ref.Name(), digest: digest.String(), image: image}, nil
}

func platformOf(p *program) v1.Platform {
	return v1.Platform{OS: p.setting("GOOS"), Architecture: p.setting("GOARCH")}
}

// build puts a program into an empty image, or onto a base, whose user and shell stay. It is reproducible: times are
// those of the commit, and nothing depends on this machine. revision is used if the program does not record its commit.
func build(p *program, revision string, on *base) (*built, error) {
	created := time.Unix(0, 0).UTC()
	if at := p.setting("vcs.time"); at != "" {
		var err error
		if created, err = time.Parse(time.RFC3339, at); err != nil {
			return nil, fmt.Errorf("reading the time of the commit in %q: %w", p.path, err)
		}
	}
	platform := platformOf(p)
	title := filepath.Base(p.path)
	from, as := empty.Image, "/"+title
	if on != nil {
		from, as = on.image, "/usr/local/bin/"+title
	}
	layer, err := layerOf(p.path, as, created)
	if err != nil {
		return nil, err
	}
	image, err := mutate.Append(
		mutate.MediaType(mutate.ConfigMediaType(from, types.OCIConfigJSON), types.OCIManifestSchema1),
		mutate.Addendum{
			Layer:   layer,
			History: v1.History{Created: v1.Time{Time: created}, CreatedBy: "hack/image", Comment: title},
		},
	)
	if err != nil {
		return nil, fmt.Errorf("adding the layer of %q: %w", p.path, err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = platform.OS, platform.Architecture
	config.Created = v1.Time{Time: created}
	labels := map[string]string{
		"org.opencontainers.image.title":    title,
		"org.opencontainers.image.version":  p.version,
		"org.opencontainers.image.revision": cmp.Or(p.setting("vcs.revision"), revision),
		"org.opencontainers.image.source":   source,
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
	if on == nil {
		config.Config = v1.Config{User: user, Entrypoint: []string{as}, WorkingDir: "/", Labels: labels}
	} else {
		labels["org.opencontainers.image.base.name"], labels["org.opencontainers.image.base.digest"] = on.name, on.digest
		config.Config.Entrypoint, config.Config.Cmd, config.Config.Labels = nil, []string{title, "--help"}, labels
	}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return nil, fmt.Errorf("writing the configuration of the image of %q: %w", p.path, err)
	}
	document, err := os.ReadFile(p.path + ".cdx.json")
	if err != nil {
		return nil, fmt.Errorf("reading the SBOM of %q: %w", p.path, err)
	}
	sbom, err := referrer(image, document)
	if err != nil {
		return nil, fmt.Errorf("attaching the SBOM of %q: %w", p.path, err)
	}
	return &built{platform: platform, image: image, sbom: sbom}, nil
}

// layerOf returns a layer with one file. As user 65532, a program needs no user database, CA certificates or time zones
// in the image.
func layerOf(path, as string, modified time.Time) (v1.Layer, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	header := &tar.Header{Name: as[1:], Mode: 0o555, ModTime: modified, Format: tar.FormatPAX}
	if err := errors.Join(add(w, header, content), w.Close()); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(out.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.BestCompression))
}

func add(w *tar.Writer, header *tar.Header, content []byte) error {
	header.Size = int64(len(content))
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}

// referrer returns an artifact whose subject is the image. Registries list it as a referrer of the image.
func referrer(image v1.Image, document []byte) (v1.Image, error) {
	subject, err := partial.Descriptor(image)
	if err != nil {
		return nil, err
	}
	artifact, err := mutate.AppendLayers(
		mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), cycloneDX),
		static.NewLayer(document, cycloneDX),
	)
	if err != nil {
		return nil, err
	}
	return mutate.Subject(artifact, *subject).(v1.Image), nil
}

// indexOf returns the image index for a tag, with an image per platform.
func indexOf(images []*built) v1.ImageIndex {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, b := range images {
		of := v1.Descriptor{Platform: &b.platform}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: b.image, Descriptor: of})
	}
	return index
}
