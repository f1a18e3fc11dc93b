package login

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	clientauthenticationv1beta1 "k8s.io/client-go/pkg/apis/clientauthentication/v1beta1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	loginv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/login/v1alpha1"
)

const (
	exchangeTimeout = 30 * time.Second
	maxResponse     = 1 << 20
	maxAttempts     = 3
	maxRetryAfter   = 5 * time.Second
)

// exchange exchanges a token for a credential of the cluster, with one anonymous POST. It uses only net/http: it runs
// before kubectl commands, and building a clientset would take longer than the request.
type exchange struct {
	endpoint      *url.URL
	caBundle      []byte // PEM; empty means the system roots
	groups        apis.Groups
	authenticator corev1.TypedLocalObjectReference
	strategy      string // requested strategy; empty means the cluster's choice

	// headers are the impersonation headers for the last credential.
	headers map[string][]string

	// plugin has the clock, which kubectl also uses for the expiry of credentials, and prints the cluster's warnings.
	plugin *Plugin

	// used, if set, is called after a successful exchange, with the client and its open connection.
	used func(context.Context, *http.Client)

	// cluster is kubectl's TLS server name and proxy for the same endpoint, or nil.
	cluster *clientauthenticationv1beta1.Cluster
}

// do exchanges token.
func (e *exchange) do(ctx context.Context, token string) (*clientauthenticationv1beta1.ExecCredentialStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	body, err := json.Marshal(loginv1alpha1.TokenCredentialRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: e.groups.Login.String(), Kind: "TokenCredentialRequest"},
		Spec: loginv1alpha1.TokenCredentialRequestSpec{
			Token: token, Authenticator: e.authenticator, Strategy: e.strategy,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("encoding the request: %w", err)
	}
	client, err := e.client()
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	for attempt := 1; ; attempt++ {
		result, err := e.post(ctx, client, body)
		if err != nil {
			return nil, err
		}
		if wait, again := result.retryAfter(); again && attempt < maxAttempts {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(wait):
				continue
			}
		}
		credential, headers, err := result.credential()
		if err == nil {
			for _, warning := range result.warnings() {
				ui.Println(e.plugin.ErrOut, "warning: %s", warning)
			}
		}
		if err == nil && e.strategy == serviceAccountToken && len(headers) == 0 {
			return nil, ui.WithHint(
				errors.New("the cluster returned a credential other than a service account token"),
				"the agent may be older than this CLI, or the strategy may be disabled: get a new kubeconfig",
			)
		}
		e.headers = headers
		if err == nil && e.used != nil {
			e.used(ctx, client)
		}
		return credential, err
	}
}

const serviceAccountToken = string(configv1alpha1.StrategyServiceAccountToken)

func (e *exchange) client(certificates ...tls.Certificate) (*http.Client, error) {
	cluster := &clientcmdapi.Cluster{} // always verified
	if e.cluster != nil {
		cluster.TLSServerName, cluster.ProxyURL = e.cluster.TLSServerName, e.cluster.ProxyURL
	}
	transport, err := discovery.NewTransport(cluster, e.caBundle)
	if err != nil {
		return nil, err
	}
	transport.TLSClientConfig.Certificates, transport.TLSHandshakeTimeout = certificates, 10*time.Second
	// The request holds a token: send it nowhere else.
	return &http.Client{Transport: transport, CheckRedirect: discovery.NoRedirect}, nil
}

// loginResponse is the cluster's response.
type loginResponse struct {
	*exchange
	status   int
	header   http.Header
	body     []byte
	received time.Time // by the local clock
}

// refusedError means that the cluster does not accept the token.
type refusedError struct{ message string }

func (e *refusedError) Error() string { return "login failed: " + e.message }

func (e *exchange) post(ctx context.Context, client *http.Client, body []byte) (*loginResponse, error) {
	target := e.endpoint.JoinPath("apis", e.groups.Login.Group, e.groups.Login.Version, "tokencredentialrequests")
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", "pinniped")
	response, err := client.Do(request)
	if err != nil {
		return nil, e.explain(err)
	}
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(http.MaxBytesReader(nil, response.Body, maxResponse))
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, ui.WithHint(fmt.Errorf("the response from %q is larger than %d bytes", e.endpoint, tooLarge.Limit),
			"a credential is much smaller; contact the cluster's administrator")
	}
	if err != nil {
		return nil, fmt.Errorf("reading the response from %q: %w", e.endpoint, err)
	}
	return &loginResponse{e, response.StatusCode, response.Header, content, e.plugin.Now()}, nil
}

// explain adds hints for the usual causes of a failed connection.
func (e *exchange) explain(err error) error {
	err = fmt.Errorf("connecting to %q: %w", e.endpoint, discovery.WithoutURL(err))
	var unknown x509.UnknownAuthorityError
	var hostname x509.HostnameError
	var invalid x509.CertificateInvalidError
	var verification *tls.CertificateVerificationError
	hint := "check the network, the VPN and HTTPS_PROXY"
	switch {
	case errors.As(err, &unknown):
		hint = "the cluster's CA has changed since this kubeconfig was created: run \"pinniped kubeconfig rotate " +
			e.plugin.origin() + "\", or get a new kubeconfig"
	case errors.As(err, &hostname):
		hint = "the cluster's serving certificate lacks this address: get a new kubeconfig, or contact the cluster's " +
			"administrator"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		hint = "the cluster's serving certificate has expired, or this computer's clock is wrong: contact the cluster's " +
			"administrator"
	case errors.As(err, &verification):
		hint = "the cluster's serving certificate is not trustworthy: contact the cluster's administrator"
	}
	return ui.WithHint(err, "%s", hint)
}

// retryAfter returns how long the cluster asks to wait before a retry, if it does.
func (a *loginResponse) retryAfter() (time.Duration, bool) {
	if a.status != http.StatusTooManyRequests && a.status != http.StatusServiceUnavailable {
		return 0, false
	}
	seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0, false
	}
	wait := time.Duration(seconds) * time.Second
	return wait, wait <= maxRetryAfter
}

func (a *loginResponse) credential() (
	status *clientauthenticationv1beta1.ExecCredentialStatus,
	headers map[string][]string,
	err error,
) {
	if a.status != http.StatusCreated && a.status != http.StatusOK {
		return nil, nil, a.failure()
	}
	var result loginv1alpha1.TokenCredentialRequest
	if err := json.Unmarshal(a.body, &result); err != nil {
		return nil, nil, fmt.Errorf("decoding the response from %q: %w", a.endpoint.Host, err)
	}
	credential := result.Status.Credential
	switch {
	case credential != nil && (credential.Token != "" || credential.ClientCertificateData != "" && credential.ClientKeyData != ""):
	case result.Status.Message != nil && *result.Status.Message != "":
		return nil, nil, ui.WithHint(
			&refusedError{*result.Status.Message + a.why()},
			"the cluster did not accept the token, or has no ready %s %q: log in with another token or get a new "+
				"kubeconfig; the agent's log has the reason%s",
			a.authenticator.Kind,
			a.authenticator.Name,
			a.auditID(),
		)
	default:
		return nil, nil, ui.WithHint(
			errors.New("login failed: unknown cause"),
			"the agent's log has the reason%s",
			a.auditID(),
		)
	}
	status = &clientauthenticationv1beta1.ExecCredentialStatus{
		Token:                 credential.Token,
		ClientCertificateData: credential.ClientCertificateData,
		ClientKeyData:         credential.ClientKeyData,
	}
	if !credential.ExpirationTimestamp.IsZero() {
		expiry := metav1.NewTime(credential.ExpirationTimestamp.Add(a.skew()))
		status.ExpirationTimestamp = &expiry
	}
	return status, credential.RequestHeaders, nil
}

// why returns the agent's reason for a failed login, from a Warning header, or "".
func (a *loginResponse) why() string {
	for _, warning := range a.warnings() {
		if why, ok := strings.CutPrefix(warning, "login failed: "); ok {
			return ": " + why
		}
	}
	return ""
}

// warnings returns the texts of the Warning headers, safe to print.
func (a *loginResponse) warnings() []string {
	parsed, _ := utilnet.ParseWarningHeaders(a.header["Warning"]) // ignore malformed ones
	texts := make([]string, 0, len(parsed))
	for _, warning := range parsed {
		texts = append(texts, strings.Map(func(r rune) rune {
			if !unicode.IsPrint(r) {
				return -1
			}
			return r
		}, warning.Text))
	}
	return texts
}

// smallSkew is the largest clock skew that is ignored.
const smallSkew = 10 * time.Second

// skew returns how far the local clock is ahead of the cluster's. If it is ahead by minutes, a short-lived credential
// has expired on arrival; if it is behind, the credential seems valid for too long.
func (a *loginResponse) skew() time.Duration {
	date, err := http.ParseTime(a.header.Get("Date"))
	if err != nil {
		return 0
	}
	if ahead := a.received.Sub(date); ahead.Abs() > smallSkew {
		return ahead.Round(time.Second)
	}
	return 0
}

func (a *loginResponse) failure() error {
	text := http.StatusText(a.status)
	var status metav1.Status
	if json.Unmarshal(a.body, &status) == nil && status.Message != "" {
		text = status.Message
	}
	err := fmt.Errorf("the cluster at %q returned %d: %s", a.endpoint.Host, a.status, text)
	switch {
	case a.status == http.StatusNotFound:
		return ui.WithHint(
			err,
			"the cluster does not serve API group %s: check that the agent is installed with this API group suffix",
			a.groups.Login.Group,
		)
	case a.status >= 300 && a.status < 400:
		return ui.WithHint(
			err,
			"a proxy between this computer and the cluster redirects requests; the token was not sent to the new address",
		)
	case a.auditID() != "":
		return ui.WithHint(err, "the agent's log has the reason%s", a.auditID())
	}
	return err
}

func (a *loginResponse) auditID() string {
	if id := a.header.Get("Audit-Id"); id != "" {
		return fmt.Sprintf(" (audit ID %q)", id)
	}
	return ""
}
