package run

import (
	"fmt"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/login"
)

// client-go checks the file of a client certificate every five minutes only. So a certificate in a file is good for
// leastCertificateLeft, and one that lives for less than leastCertificateLife is not put into a file: it would have to
// be renewed all the time.
const (
	leastCertificateLeft = 6 * time.Minute
	leastCertificateLife = 12 * time.Minute
)

// writer writes the files of a run.
type writer struct {
	files   *files
	cluster *factory.Cluster
	plugin  string // path of this program
	// proxy holds the credential in place of a file; nil for --direct, and for contexts that do not log in.
	proxy *loopback

	written []byte // the kubeconfig
}

// write puts the credential into its file, and then the kubeconfig that leads there into its own.
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

// writeCredential puts the credential into files of its own.
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

// inFile reports whether a certificate is handed over in a file.
func inFile(credential *login.Credential) bool {
	return credential != nil && credential.ClientCertificateData != "" &&
		certificateLife(credential) >= leastCertificateLife
}

// kubeconfig returns the context of the run alone, under its own names. Without a credential, its user is as it is.
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
