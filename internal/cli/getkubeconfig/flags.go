package getkubeconfig

import (
	"fmt"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
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

// modeFlag is --concierge-mode.
type modeFlag struct{ mode *discovery.Mode }

func (m modeFlag) Set(text string) (err error) {
	*m.mode, err = discovery.ParseMode(text)
	return err
}

func (m modeFlag) String() string {
	if m.mode == nil {
		return ""
	}
	return string(*m.mode)
}
func (m modeFlag) Type() string { return "mode" }

// authenticatorTypeFlag is --concierge-authenticator-type.
type authenticatorTypeFlag struct{ kind *discovery.AuthenticatorType }

func (a authenticatorTypeFlag) Set(text string) (err error) {
	*a.kind, err = discovery.ParseAuthenticatorType(text)
	return err
}

func (a authenticatorTypeFlag) String() string {
	if a.kind == nil {
		return ""
	}
	return string(*a.kind)
}
func (a authenticatorTypeFlag) Type() string { return "type" }

// loginFlag is --login.
type loginFlag struct{ login *Login }

func (l loginFlag) Set(text string) error {
	login := Login(strings.ToLower(text))
	if len(validation.IsDNS1123Label(string(login))) > 0 {
		return fmt.Errorf("supported values are %q, %q and names of logins in the CredentialIssuer", LoginPlugin, LoginBearer)
	}
	*l.login = login
	return nil
}

func (l loginFlag) String() string {
	if l.login == nil || *l.login == "" {
		return string(LoginPlugin)
	}
	return string(*l.login)
}
func (l loginFlag) Type() string { return "login" }

// validationFlag is --validate.
type validationFlag struct{ validation *Validation }

func (v validationFlag) Set(text string) error {
	switch validation := Validation(strings.ToLower(text)); validation {
	case ValidateConnection, ValidateLogin, ValidateNothing:
		*v.validation = validation
		return nil
	}
	return fmt.Errorf("supported values are %q, %q and %q", ValidateConnection, ValidateLogin, ValidateNothing)
}

func (v validationFlag) String() string {
	if v.validation == nil || *v.validation == "" {
		return string(ValidateConnection)
	}
	return string(*v.validation)
}
func (v validationFlag) Type() string { return "what" }
