package kubeconfig

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Input is what a kubeconfig is built from.
type Input struct {
	Source *Source // whose names and connection settings are taken over
	Suffix string  // appended to the source's names of context, cluster and user

	// Server and CABundle replace the source's when Server is set. An empty CABundle means the system roots.
	Server   string
	CABundle []byte

	// TokenFile, if set, is the file from which clients read a bearer token, instead of running Exec.
	TokenFile string
	Exec      Exec
}

// Build returns a kubeconfig with one cluster, one user and one context, which is the current one.
//
// A Server that is another one than the source's is a different endpoint: what only concerns the old one
// (tls-server-name, insecure-skip-tls-verify) is left out, what describes the way there (proxy-url,
// disable-compression) is kept. A CA bundle is always embedded, and must hold certificates only.
func Build(in Input) (*clientcmdapi.Config, error) {
	cluster := in.Source.Cluster.DeepCopy()
	bundle := in.CABundle
	if in.Server == "" {
		var err error
		if bundle, err = in.Source.CABundle(); err != nil {
			return nil, err
		}
	} else if in.Server != cluster.Server {
		cluster.Server = in.Server
		cluster.TLSServerName = ""
		cluster.InsecureSkipTLSVerify = false
	}
	cluster.LocationOfOrigin = ""
	cluster.CertificateAuthority = ""
	cluster.CertificateAuthorityData = nil
	if len(bundle) > 0 {
		if _, err := CountCertificates(bundle); err != nil {
			return nil, fmt.Errorf("checking the CA bundle: %w", err)
		}
		cluster.CertificateAuthorityData = bundle
		cluster.InsecureSkipTLSVerify = false // client-go refuses both together
	}

	config := clientcmdapi.NewConfig()
	clusterName, userName, contextName := in.Source.ClusterName+in.Suffix, in.Source.UserName+in.Suffix, in.Source.ContextName+in.Suffix
	config.Clusters[clusterName] = cluster
	config.AuthInfos[userName] = in.authInfo()
	config.Contexts[contextName] = &clientcmdapi.Context{Cluster: clusterName, AuthInfo: userName}
	config.CurrentContext = contextName
	return config, nil
}

func (in *Input) authInfo() *clientcmdapi.AuthInfo {
	if in.TokenFile != "" {
		return &clientcmdapi.AuthInfo{TokenFile: in.TokenFile}
	}
	return &clientcmdapi.AuthInfo{Exec: in.Exec.config()}
}

// CountCertificates returns how many certificates a CA bundle (PEM) has. A bundle without any, with a block that is not
// a certificate, or with a certificate that cannot be parsed is an error that names the block; contents are never
// part of it.
func CountCertificates(bundle []byte) (int, error) {
	count := 0
	for rest := bundle; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return 0, fmt.Errorf("block %d is a %q, not a certificate", count+1, block.Type)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return 0, fmt.Errorf("block %d: %w", count+1, err)
		}
		count++
	}
	if count == 0 {
		return 0, errors.New("no PEM certificates found (they begin with \"-----BEGIN CERTIFICATE-----\")")
	}
	return count, nil
}
