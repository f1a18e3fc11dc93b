// Command image packs programs into a container image without a Docker daemon: into an empty image, or onto one from a
// registry.
//
//	image -name REGISTRY/pinniped-agent -version V -layout DIR -tar FILE PROGRAM...
//	image -name REGISTRY/pinniped-agent -version V -push PROGRAM...
//	image -name REGISTRY/pinniped -version V -base docker.io/alpine/git:v2 -push PROGRAM...
//
// Each PROGRAM is for another platform, which its build info names. Its SBOM is the file PROGRAM.cdx.json. The command
// prints the image's name with its digest.
package main

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

type options struct {
	name, version string
	revision      string
	base          string
	layout, tar   string
	push          bool
	programs      []string
}

func main() {
	var o options
	flag.StringVar(&o.name, "name", "", "name of the image, with its registry and without a tag")
	flag.StringVar(&o.version, "version", "", "version of the product, and the image's tag")
	flag.StringVar(
		&o.revision,
		"revision",
		"",
		"commit of programs that do not name theirs: Go finds none in a git worktree",
	)
	flag.StringVar(&o.base, "base", "", "image to add the programs to; without it they are alone")
	flag.StringVar(&o.layout, "layout", "", "folder for the image in the layout of OCI, all platforms")
	flag.StringVar(
		&o.tar,
		"tar",
		"",
		"file for the image of this machine's architecture, as `kind load image-archive` and `ctr images import` take it",
	)
	flag.BoolVar(&o.push, "push", false, "push the image, all platforms, with the credentials of ~/.docker/config.json")
	flag.Parse()
	o.programs = flag.Args()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := o.run(ctx, os.Stdout); err != nil {
		stop()
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1) //nolint:gocritic // stop was called
	}
}

func (o *options) run(ctx context.Context, out io.Writer) error {
	if len(o.programs) == 0 {
		return fmt.Errorf("no PROGRAM named")
	}
	// Tags cannot contain a plus sign, which versions between releases have. Helm also replaces it by an underscore.
	tag, err := name.NewTag(o.name + ":" + strings.ReplaceAll(o.version, "+", "_"))
	if err != nil {
		return fmt.Errorf("reading -name and -version: %w", err)
	}
	var images []*built
	for _, path := range o.programs {
		p, err := readProgram(path, o.version)
		if err != nil {
			return err
		}
		var on *base
		if o.base != "" {
			if on, err = pullBase(ctx, o.base, platformOf(p)); err != nil {
				return fmt.Errorf("reading the base %q: %w", o.base, err)
			}
		}
		b, err := build(p, o.revision, on)
		if err != nil {
			return err
		}
		images = append(images, b)
	}
	index := indexOf(images)
	if o.layout != "" {
		if err := writeLayout(o.layout, tag, index, images); err != nil {
			return fmt.Errorf("writing %q: %w", o.layout, err)
		}
	}
	if o.tar != "" {
		if err := writeTar(o.tar, tag, images); err != nil {
			return fmt.Errorf("writing %q: %w", o.tar, err)
		}
	}
	if o.push {
		if err := push(ctx, tag, index, images); err != nil {
			return fmt.Errorf("pushing %s: %w", tag, err)
		}
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s@%s\n", tag.Context().Name(), digest)
	return err
}

// writeLayout replaces the content of the directory, so that it never has images of two builds.
func writeLayout(folder string, tag name.Tag, index v1.ImageIndex, images []*built) error {
	if _, err := os.Stat(folder); err == nil {
		if _, err := layout.FromPath(folder); err != nil {
			return fmt.Errorf("the folder is there and holds no image: remove it, or name another")
		}
		if err := os.RemoveAll(folder); err != nil {
			return err
		}
	}
	path, err := layout.Write(folder, empty.Index)
	if err != nil {
		return err
	}
	named := layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": tag.TagStr()})
	if err := path.AppendIndex(index, named); err != nil {
		return err
	}
	for _, b := range images {
		if err := path.AppendImage(b.sbom); err != nil {
			return err
		}
	}
	return nil
}

// writeTar writes the image for this machine's architecture. It renames the file into place when it is complete.
func writeTar(file string, tag name.Tag, images []*built) error {
	for _, b := range images {
		if b.platform.Architecture != runtime.GOARCH {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		unfinished := file + ".unfinished"
		defer os.Remove(unfinished) //nolint:errcheck // already renamed on success
		to, err := os.Create(unfinished)
		if err != nil {
			return err
		}
		err = archive(to, b.image, tag.Context().Tag("latest").Name(), tag.Name())
		if err := errors.Join(err, to.Close()); err != nil {
			return err
		}
		return os.Rename(unfinished, file)
	}
	return fmt.Errorf("no program for linux/%s among those to pack", runtime.GOARCH)
}

// archive writes an image like `docker save`. The library's writer orders tags randomly, so that builds would differ.
func archive(to io.Writer, image v1.Image, tags ...string) error {
	out := tar.NewWriter(to)
	put := func(name string, content []byte) error {
		return add(out, &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, content)
	}
	config, err := image.ConfigName()
	if err != nil {
		return err
	}
	raw, err := image.RawConfigFile()
	if err != nil {
		return err
	}
	if err := put(config.String(), raw); err != nil {
		return err
	}
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	listed := tarball.Descriptor{Config: config.String(), RepoTags: tags}
	for _, layer := range layers {
		digest, err := layer.Digest()
		if err != nil {
			return err
		}
		packed, err := layer.Compressed()
		if err != nil {
			return err
		}
		content, err := io.ReadAll(packed)
		if err := errors.Join(err, packed.Close()); err != nil {
			return err
		}
		listed.Layers = append(listed.Layers, digest.Hex+".tar.gz")
		if err := put(digest.Hex+".tar.gz", content); err != nil {
			return err
		}
	}
	manifest, err := json.Marshal(tarball.Manifest{listed})
	if err != nil {
		return err
	}
	return errors.Join(put("manifest.json", manifest), out.Close())
}

func push(ctx context.Context, tag name.Tag, index v1.ImageIndex, images []*built) error {
	with := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	if err := remote.WriteIndex(tag, index, with...); err != nil {
		return err
	}
	for _, b := range images {
		digest, err := b.sbom.Digest()
		if err != nil {
			return err
		}
		if err := remote.Write(tag.Context().Digest(digest.String()), b.sbom, with...); err != nil {
			return fmt.Errorf("pushing its SBOM: %w", err)
		}
	}
	return nil
}
