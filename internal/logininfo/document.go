// Package logininfo is the document in which the impersonation proxy publishes how users log in, and the page for
// browsers. Both are public: the proxy serves them to all clients. "pinniped get kubeconfig --from" creates a
// kubeconfig from the document. Both sides validate every field, because the other side may be hostile.
package logininfo

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strings"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// Path is the path of the document, for GET requests without credentials.
const Path = "/.well-known/pinniped-login"

// MaxSize is the maximum size of a document in bytes.
const MaxSize = 64 << 10

const (
	apiVersion = "login.pinniped.dev/v1"
	kind       = "LoginInfo"
)

// Info is the document.
type Info struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	// ClusterName is the name of the context and the cluster in kubeconfigs.
	ClusterName string `json:"clusterName"`
	// Endpoint is the URL of the proxy, without a path.
	Endpoint string `json:"endpoint"`
	// CABundle verifies the proxy, in PEM; empty for the system roots.
	CABundle []byte `json:"certificateAuthorityData"`
	// APIGroupSuffix is the suffix of the installation's API groups.
	APIGroupSuffix string `json:"apiGroupSuffix"`
	// Logins has at least one element.
	Logins []Login `json:"logins"`
}

// Login is one way to log in.
type Login struct {
	Name               string                                 `json:"name"`
	Authenticator      configv1alpha1.KubeconfigAuthenticator `json:"authenticator"`
	OIDC               *OIDC                                  `json:"oidc,omitempty"` // set for a JWTAuthenticator
	RefreshTrustBundle bool                                   `json:"refreshTrustBundle,omitempty"`
}

// OIDC is how to get a token for a JWTAuthenticator.
type OIDC struct {
	configv1alpha1.KubeconfigOIDC `json:",inline"`

	Issuer   string `json:"issuer"`
	Audience string `json:"audience"`
	// CABundle verifies the issuer, in PEM; empty for the system roots.
	CABundle []byte `json:"certificateAuthorityData,omitempty"`
}

// ErrNoDocument is the error for a response that is not a login document.
var ErrNoDocument = errors.New("the response does not say how people log in")

// Encode returns the document, or an error that names the invalid field.
func Encode(info Info) ([]byte, error) {
	info.APIVersion, info.Kind = apiVersion, kind
	if info.CABundle == nil {
		info.CABundle = []byte{} // encode as "", not null
	}
	if err := info.validate(); err != nil {
		return nil, err
	}
	encoded, err := json.Marshal(info)
	if err != nil {
		return nil, fmt.Errorf("encoding the document: %w", err)
	}
	if len(encoded) > MaxSize {
		return nil, fmt.Errorf("the document has %d bytes, the limit is %d", len(encoded), MaxSize)
	}
	return encoded, nil
}

// Decode reads and validates a document of at most MaxSize bytes. It ignores unknown fields. It returns ErrNoDocument
// if the content is not a login document.
func Decode(r io.Reader) (*Info, error) {
	content, err := io.ReadAll(io.LimitReader(r, MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("reading the response: %w", err)
	}
	if len(content) > MaxSize {
		return nil, fmt.Errorf("%w: it has more than %d bytes", ErrNoDocument, MaxSize)
	}
	var info Info
	decoder := json.NewDecoder(bytes.NewReader(content))
	if err := decoder.Decode(&info); err != nil || info.Kind != kind {
		return nil, ErrNoDocument
	}
	if info.APIVersion != apiVersion {
		return nil, fmt.Errorf("the document has version %.40q, not the supported %q", info.APIVersion, apiVersion)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("trailing data after document")
	}
	if err := info.validate(); err != nil {
		return nil, err
	}
	return &info, nil
}

// Syntax of the fields. They become arguments of the credential plugin, so none begins with a dash, and none contains
// control characters, spaces or commas.
var (
	label     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	labels    = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$`)
	subdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)
	word      = regexp.MustCompile(`^[A-Za-z0-9_][!-+\--~]{0,255}$`)
	origin    = regexp.MustCompile(`^https://[][A-Za-z0-9.:-]+$`)
)

const (
	maxLogins = 8
	maxScopes = 32
	maxURL    = 512
)

func (i *Info) validate() error {
	if err := valid("clusterName", i.ClusterName, labels); err != nil {
		return err
	}
	if err := cmp.Or(checkURL("endpoint", i.Endpoint), valid("endpoint", i.Endpoint, origin)); err != nil {
		return err
	}
	if err := checkBundle("certificateAuthorityData", i.CABundle); err != nil {
		return err
	}
	if err := valid("apiGroupSuffix", i.APIGroupSuffix, subdomain); err != nil {
		return err
	}
	if len(i.Logins) == 0 || len(i.Logins) > maxLogins {
		return fmt.Errorf("%d logins instead of 1 to %d", len(i.Logins), maxLogins)
	}
	for n := range i.Logins {
		login := &i.Logins[n]
		if err := login.validate(); err != nil {
			return fmt.Errorf("logins[%d]: %w", n, err)
		}
		if slices.ContainsFunc(i.Logins[:n], func(l Login) bool { return l.Name == login.Name }) {
			return fmt.Errorf("logins[%d]: there are two with the name %q", n, login.Name)
		}
	}
	return nil
}

func (l *Login) validate() error {
	if err := valid("name", l.Name, label); err != nil {
		return err
	}
	if err := valid("authenticator.name", l.Authenticator.Name, subdomain); err != nil {
		return err
	}
	switch l.Authenticator.Kind {
	case configv1alpha1.AuthenticatorKindJWT:
		if l.OIDC == nil {
			return errors.New("oidc is missing")
		}
		return l.OIDC.validate()
	case configv1alpha1.AuthenticatorKindWebhook:
		if l.OIDC != nil {
			return errors.New("oidc cannot be combined with a WebhookAuthenticator")
		}
		return nil
	}
	return fmt.Errorf("authenticator.kind %.80q is not known", l.Authenticator.Kind)
}

func (o *OIDC) validate() error {
	if err := cmp.Or(checkURL("oidc.issuer", o.Issuer), valid("oidc.clientID", o.ClientID, word),
		valid("oidc.audience", o.Audience, word)); err != nil {
		return err
	}
	if len(o.Scopes) == 0 || len(o.Scopes) > maxScopes {
		return fmt.Errorf("there are %d oidc.scopes, and not 1 to %d", len(o.Scopes), maxScopes)
	}
	for _, scope := range o.Scopes {
		if err := valid("oidc.scopes", scope, word); err != nil {
			return err
		}
	}
	if !slices.Contains([]string{"", "browser_authcode", "cli_password", "device_code"}, o.Flow) {
		return fmt.Errorf("oidc.flow %.80q is not known", o.Flow)
	}
	if o.ListenPort < 0 || o.ListenPort > math.MaxUint16 {
		return fmt.Errorf("oidc.listenPort %d is not valid", o.ListenPort)
	}
	return checkBundle("oidc.certificateAuthorityData", o.CABundle)
}

func valid(field, value string, form *regexp.Regexp) error {
	if !form.MatchString(value) {
		return fmt.Errorf("%s %.80q is not valid", field, value)
	}
	return nil
}

// checkURL accepts https URLs with a host and an optional path, and nothing else.
func checkURL(field, text string) error {
	at, err := url.Parse(text)
	if err != nil || len(text) > maxURL || at.Scheme != "https" || at.Hostname() == "" || at.User != nil ||
		strings.ContainsAny(text, "?#\\'\"<> ,") || at.String() != text {
		return fmt.Errorf("%s %.80q is not an https URL of a host and a path", field, text)
	}
	return nil
}

// checkBundle accepts certificates in PEM, or nothing.
func checkBundle(field string, bundle []byte) error {
	if len(bundle) == 0 {
		return nil
	}
	if _, err := kubeconfig.CountCertificates(bundle); err != nil {
		return fmt.Errorf("%s: %w", field, err)
	}
	return nil
}

// Names returns the names in a login's kubeconfig; login is empty for users who log in in another way.
func Names(clusterName, login string) kubeconfig.Names {
	names := kubeconfig.Names{Context: clusterName, Cluster: clusterName, User: clusterName}
	if login != "" {
		names.User += "-" + login
	}
	return names
}

// Source returns a source with the cluster's name, in place of the administrator's kubeconfig.
func (i *Info) Source() *kubeconfig.Source {
	name := i.ClusterName
	return &kubeconfig.Source{ContextName: name, ClusterName: name, UserName: name, Cluster: clientcmdapi.NewCluster()}
}

// Kubeconfig returns the kubeconfig of an OIDC login, for users with pinniped on their PATH.
func (i *Info) Kubeconfig(login *Login) ([]byte, error) {
	o := login.OIDC
	input := kubeconfig.Input{
		Source: i.Source(), Names: Names(i.ClusterName, login.Name), Server: i.Endpoint, CABundle: i.CABundle,
		Exec: kubeconfig.Exec{
			Command: "pinniped", InstallHint: kubeconfig.DefaultInstallHint,
			Concierge: &kubeconfig.Concierge{
				APIGroupSuffix: i.APIGroupSuffix, AuthenticatorName: login.Authenticator.Name, AuthenticatorType: "jwt",
				Endpoint: i.Endpoint, CABundle: i.CABundle,
			},
			OIDC: &kubeconfig.OIDC{
				Issuer: o.Issuer, ClientID: o.ClientID, Scopes: o.Scopes, CABundle: o.CABundle, RequestAudience: o.Audience,
				UpstreamFlow: o.Flow, ListenPort: uint16(o.ListenPort), //nolint:gosec // validated
			},
		},
	}
	if login.RefreshTrustBundle {
		input.Exec.Concierge.Follow = kubeconfig.FollowUsual
	}
	config, err := kubeconfig.Build(input)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	err = kubeconfig.Write(&text, config)
	return text.Bytes(), err
}
