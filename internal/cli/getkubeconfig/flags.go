package getkubeconfig

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// bundleFlag is a repeatable flag for PEM files, which are read and checked when the flag is parsed.
type bundleFlag struct {
	expand func(path string) (string, error)
	paths  []string
	pem    []byte
}

const certificates = "certificates in PEM format"

func (b *bundleFlag) Set(path string) error {
	path, err := b.expand(path)
	if err != nil {
		return err
	}
	content, err := kubeconfig.ReadInput(path)
	if err != nil {
		return ui.WithFileHint(fmt.Errorf("could not read CA bundle path: %w", err), certificates)
	}
	if _, err := kubeconfig.CountCertificates(content); err != nil {
		return ui.WithFileHint(fmt.Errorf("failed to load any CA certificates from %q: %w", path, err), certificates)
	}
	if len(b.pem) > 0 {
		b.pem = append(b.pem, '\n')
	}
	b.paths = append(b.paths, path)
	b.pem = append(b.pem, content...)
	return nil
}

// absolute makes paths in the kubeconfig absolute, because its users run the plugin in any directory.
func absolute(paths ...*string) error {
	for _, path := range paths {
		if *path == "" {
			continue
		}
		whole, err := filepath.Abs(*path)
		if err != nil {
			return fmt.Errorf("making the path %q absolute: %w", *path, err)
		}
		*path = whole
	}
	return nil
}

func (b *bundleFlag) String() string { return strings.Join(b.paths, ",") }
func (b *bundleFlag) Type() string   { return "path" }

// textFlag is a flag with few valid values.
type textFlag[T ~string] struct {
	value *T
	parse func(text string) (T, error)
	unset T      // what an empty value means, for the help
	kind  string // of value, for the help
}

func (f textFlag[T]) Set(text string) (err error) {
	*f.value, err = f.parse(text)
	return err
}

func (f textFlag[T]) String() string { return string(cmp.Or(*f.value, f.unset)) }
func (f textFlag[T]) Type() string   { return f.kind }

func parseLogin(text string) (Login, error) {
	login := Login(strings.ToLower(text))
	if len(validation.IsDNS1123Label(string(login))) > 0 {
		return "", fmt.Errorf(
			"supported values are %q, %q and names of logins in the CredentialIssuer",
			LoginPlugin,
			LoginBearer,
		)
	}
	return login, nil
}

func parseValidation(text string) (Validation, error) {
	switch validation := Validation(strings.ToLower(text)); validation {
	case ValidateConnection, ValidateLogin, ValidateNothing:
		return validation, nil
	}
	return "", fmt.Errorf("supported values are %q, %q and %q", ValidateConnection, ValidateLogin, ValidateNothing)
}
