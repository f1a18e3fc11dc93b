package kubeconfig

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

func lookPath(name string) (string, error) { return exec.LookPath(name) }

// describe evaluates a context of a kubeconfig, without a network.
func (o *ListOptions) describe(config *clientcmdapi.Config, name string) result.KubeconfigContext {
	kubeContext := config.Contexts[name]
	row := result.KubeconfigContext{Cluster: kubeContext.Cluster, User: kubeContext.AuthInfo}
	if cluster := config.Clusters[kubeContext.Cluster]; cluster == nil || cluster.Server == "" {
		blame(&row, result.VerdictIncomplete, fmt.Sprintf("there is no cluster %q with a server", kubeContext.Cluster))
	} else {
		row.Endpoint = cluster.Server
		o.judgeCluster(&row, cluster)
	}
	if user := config.AuthInfos[kubeContext.AuthInfo]; user == nil {
		blame(&row, result.VerdictIncomplete, fmt.Sprintf("there is no user %q", kubeContext.AuthInfo))
	} else {
		o.judgeUser(&row, user)
	}
	if row.Verdict == "" {
		row.Verdict = result.VerdictOK
	}
	return row
}

func (o *ListOptions) judgeCluster(row *result.KubeconfigContext, cluster *clientcmdapi.Cluster) {
	if cluster.InsecureSkipTLSVerify {
		blame(row, result.VerdictInsecure, "it has insecure-skip-tls-verify, so an on-path attacker can read everything")
		return
	}
	bundle, err := bundleOf(cluster)
	if err == nil && len(bundle) > 0 {
		_, err = kubeconfig.CountCertificates(bundle)
	}
	if err != nil {
		blame(row, result.VerdictUnreadable, fmt.Sprintf("reading the CA bundle of cluster %q: %v", row.Cluster, err))
		return
	}
	row.CABundle = result.BundleOf(bundle)
	for _, ca := range row.CABundle {
		o.judgeExpiry(row, "the CA "+ca.Subject, ca.NotAfter)
	}
}

func bundleOf(cluster *clientcmdapi.Cluster) ([]byte, error) {
	if len(cluster.CertificateAuthorityData) > 0 || cluster.CertificateAuthority == "" {
		return cluster.CertificateAuthorityData, nil
	}
	return kubeconfig.ReadNamed(cluster.CertificateAuthority)
}

func (o *ListOptions) judgeExpiry(row *result.KubeconfigContext, what string, notAfter time.Time) {
	day := notAfter.UTC().Format("2006-01-02")
	switch left := notAfter.Sub(o.Now()); {
	case left <= 0:
		blame(row, result.VerdictExpired, fmt.Sprintf("%s expired on %s", what, day))
	case left < o.ExpiresWithin:
		blame(row, result.VerdictExpiring, fmt.Sprintf("%s expires on %s", what, day))
	}
}

// judgeUser describes how the user logs in. It prints no secret.
func (o *ListOptions) judgeUser(row *result.KubeconfigContext, user *clientcmdapi.AuthInfo) {
	switch {
	case user.Exec != nil:
		row.Login = pluginText(user)
		if _, err := o.LookPath(user.Exec.Command); err != nil {
			blame(
				row,
				result.VerdictNoPlugin,
				fmt.Sprintf("the credential plugin %q is not on this computer", user.Exec.Command),
			)
		}
		if program := kubeconfig.UnknownPlugin(user); program != "" {
			blame(row, result.VerdictNotKnown,
				fmt.Sprintf("the credential plugin %q is unknown, and so is the CA that it trusts", program))
		}
	case user.AuthProvider != nil:
		row.Login = "auth provider " + user.AuthProvider.Name
		blame(row, result.VerdictNoPlugin, "kubectl no longer supports auth providers: recreate the kubeconfig")
	case len(user.ClientCertificateData) > 0, user.ClientCertificate != "":
		o.judgeCertificate(row, user)
	case user.TokenFile != "":
		row.Login = "token in " + user.TokenFile
	case user.Token != "":
		row.Login = "token"
	case user.Username != "":
		row.Login = "password of " + user.Username
	default:
		row.Login = "nobody"
	}
	if user.Impersonate != "" {
		row.Login += ", as " + user.Impersonate
	}
}

func (o *ListOptions) judgeCertificate(row *result.KubeconfigContext, user *clientcmdapi.AuthInfo) {
	row.Login = "client certificate"
	text := user.ClientCertificateData
	var err error
	if len(text) == 0 {
		text, err = kubeconfig.ReadNamed(user.ClientCertificate)
	}
	var certificate *x509.Certificate
	if err == nil {
		block, _ := pem.Decode(text)
		if block == nil {
			err = fmt.Errorf("it is not PEM")
		} else {
			certificate, err = x509.ParseCertificate(block.Bytes)
		}
	}
	if err != nil {
		blame(row, result.VerdictUnreadable, fmt.Sprintf("reading the client certificate of user %q: %v", row.User, err))
		return
	}
	row.Login += " of " + certificate.Subject.CommonName
	o.judgeExpiry(row, "the client certificate", certificate.NotAfter)
}

// pluginText names a credential plugin and, for "pinniped login", the source of its token.
func pluginText(user *clientcmdapi.AuthInfo) string {
	plugin := user.Exec
	if !kubeconfig.RunsPinniped(user) {
		return "plugin " + filepath.Base(strings.ReplaceAll(plugin.Command, `\`, "/"))
	}
	values := map[string]string{}
	text := "pinniped static"
	for i, arg := range plugin.Args {
		if arg == "oidc" && i > 0 && plugin.Args[i-1] == "login" {
			text = "pinniped oidc"
		}
		name, value, _ := strings.Cut(arg, "=")
		values[name] = value
	}
	switch {
	case values["--issuer"] != "":
		return text + ", " + values["--issuer"]
	case values["--token-env"] != "":
		return text + ", $" + values["--token-env"]
	}
	return text
}
