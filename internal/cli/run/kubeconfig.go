package run

import (
	"fmt"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/login"
)

// client-go rereads client certificate files only every five minutes. So a certificate in a file stays valid for
// leastCertificateLeft, and one that lives shorter than leastCertificateLife is not put into a file: it would need
// constant renewal.
const (
	leastCertificateLeft = 6 * time.Minute
	leastCertificateLife = 12 * time.Minute
)

// writer writes the files of a run.
type writer struct {
	files   *files
	cluster *factory.Cluster
	plugin  string // path of this executable
	// proxy holds the credential instead of a file; nil with --direct, and for contexts without "pinniped login".
	proxy *loopback

	written []byte // last kubeconfig written
}

// write writes the credential, and then the kubeconfig that refers to it if that has changed.
func (w *writer) write(credential *login.Credential) error {
	if w.proxy != nil {
		if err := w.proxy.use(credential); err != nil {
			return fmt.Errorf("using the credential: %w", err)
		}
	} else if err := w.writeCredential(credential); err != nil {
		return err
	}
	content, err := clientcmd.Write(*w.kubeconfig(credential))
	if err != nil {
		return fmt.Errorf("encoding the kubeconfig: %w", err)
	}
	if string(content) == string(w.written) {
		return nil
	}
	if err := w.files.write(kubeconfigName, content); err != nil {
		return fmt.Errorf("writing the kubeconfig: %w", err)
	}
	w.written = content
	return nil
}

// writeCredential writes the credential to its files.
func (w *writer) writeCredential(credential *login.Credential) error {
	if credential != nil && credential.Token != "" {
		if err := w.files.write(tokenName, []byte(credential.Token)); err != nil {
			return fmt.Errorf("writing the token: %w", err)
		}
	}
	if inFile(credential) {
		pair := credential.ClientCertificateData + "\n" + credential.ClientKeyData
		if err := w.files.write(certificateName, []byte(pair)); err != nil {
			return fmt.Errorf("writing the client certificate: %w", err)
		}
	}
	return nil
}

// inFile reports whether the credential is a certificate that is passed in a file.
func inFile(credential *login.Credential) bool {
	return credential != nil && credential.ClientCertificateData != "" &&
		certificateLife(credential) >= leastCertificateLife
}

// kubeconfig returns a kubeconfig with only the run's context. Without a credential, the user is unchanged.
func (w *writer) kubeconfig(credential *login.Credential) *clientcmdapi.Config {
	source := w.cluster.Source
	user := &clientcmdapi.AuthInfo{}
	if given := w.cluster.Raw.AuthInfos[source.UserName]; given != nil {
		user = given.DeepCopy()
	}
	cluster := source.Cluster.DeepCopy()
	user.LocationOfOrigin, cluster.LocationOfOrigin = "", ""
	switch {
	case w.proxy != nil:
		user = &clientcmdapi.AuthInfo{Token: w.proxy.token}
		cluster = &clientcmdapi.Cluster{Server: w.proxy.url, CertificateAuthorityData: w.proxy.caBundle}
	case credential == nil:
	case credential.Token != "":
		user.Exec, user.TokenFile = nil, w.files.path(tokenName)
		if credential.Impersonate != nil {
			credential.Impersonate.SetOn(user)
		}
	case inFile(credential):
		user.Exec = nil
		user.ClientCertificate, user.ClientKey = w.files.path(certificateName), w.files.path(certificateName)
	case user.Exec != nil:
		user.Exec.Command = w.plugin
	}
	kubeContext := w.cluster.Raw.Contexts[source.ContextName].DeepCopy()
	kubeContext.LocationOfOrigin = ""

	config := clientcmdapi.NewConfig()
	config.Clusters[source.ClusterName] = cluster
	config.AuthInfos[source.UserName] = user
	config.Contexts[source.ContextName] = kubeContext
	config.CurrentContext = source.ContextName
	return config
}
