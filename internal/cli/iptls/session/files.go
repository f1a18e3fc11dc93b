package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// maxPEM limits what is read of a PEM file. It is far above the limit of the checks, which report the true size.
const maxPEM = 16 << 20

// ReadPEMFile reads a file with certificates or a key, which must not be empty.
func ReadPEMFile(what, path string, stdin io.Reader) ([]byte, error) {
	content, err := readPEM(what, path, stdin)
	if err == nil && len(bytes.TrimSpace(content)) == 0 {
		return nil, ui.WithHint(ui.Usage(fmt.Errorf("%s in %s is empty", what, NameOf(path))),
			"name the PEM file that holds it")
	}
	return content, err
}

// readPEM is ReadPEMFile, but the file, which may be a pipe, can be empty.
func readPEM(what, path string, stdin io.Reader) (content []byte, err error) {
	if path == "-" {
		content, err = atomicfile.ReadStream(stdin, maxPEM)
	} else {
		content, err = atomicfile.ReadInput(path, maxPEM)
	}
	if err != nil {
		return nil, ui.WithFileHint(ui.Usage(fmt.Errorf("reading %s: %w", what, err)), "it")
	}
	return content, nil
}

// NameOf returns a file's name for messages: its path in quotes, or stdin.
func NameOf(path string) string {
	if path == "-" {
		return "stdin"
	}
	return fmt.Sprintf("%q", path)
}

// OneFromStdin returns an error if more than one file is stdin.
func OneFromStdin(flags map[string]string) error {
	var named []string
	for flag, path := range flags {
		if path == "-" {
			named = append(named, "--"+flag)
		}
	}
	if len(named) < 2 {
		return nil
	}
	slices.Sort(named)
	return ui.Usage(fmt.Errorf("only one of %s can be read from stdin", strings.Join(named, " and ")))
}

// Kubeconfig is a kubeconfig with its file, or the error why it cannot be read.
type Kubeconfig struct {
	File   string
	Config *clientcmdapi.Config
	Err    error
}

// ReadKubeconfigs loads files, which must be kubeconfigs, and those in directories. It runs no credential plugin.
func (s *Session) ReadKubeconfigs(ctx context.Context, paths []string) ([]Kubeconfig, error) {
	files, err := kubeconfig.Find(ctx, paths)
	if err != nil {
		return nil, err
	}
	var all []Kubeconfig
	for _, file := range files {
		if file.Hidden {
			s.Progress.Info("Skipped hidden folder %q: pass its path if it has kubeconfigs", file.Path)
			continue
		}
		one := Kubeconfig{File: file.Path, Err: file.Err}
		if one.Err == nil {
			one.Config, one.Err = file.Load(s.Inputs)
		}
		switch {
		case one.Err != nil && file.Named:
			return nil, ui.Usage(one.Err)
		case errors.Is(one.Err, kubeconfig.ErrNotKubeconfig): // another kind of file
		default:
			all = append(all, one)
		}
	}
	return all, nil
}

// Endpoint returns the published endpoint with all of its names, for finding the kubeconfigs that use it. missing says
// which names are unknown; it is empty if none are.
func (s *Session) Endpoint(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, namespace, url string) (
	all kubeconfig.Endpoint, missing string, err error,
) {
	service, missing, err := discovery.FindService(ctx, s.Cluster, issuer, namespace)
	switch {
	case errors.Is(err, discovery.ErrForbidden):
		missing = fmt.Sprintf("reading the Service in front of the impersonation proxy: %v; its addresses are not known", err)
	case err != nil:
		return all, "", WithCodes(fmt.Errorf("reading the Service in front of the impersonation proxy: %w", err))
	}
	if missing != "" {
		missing += ", so kubeconfigs that use one of them are not found"
	}
	all = discovery.Endpoint(issuer, service, url)
	all.SameServer = discovery.SameServer(ctx, s.Network.Resolve, url)
	return all, missing, nil
}
