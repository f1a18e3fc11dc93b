// Package kubeconfig builds and edits kubeconfigs that log in with the pinniped CLI. It never contacts a cluster.
//
// Select selects the context of an existing kubeconfig; Build builds a new kubeconfig for it, with an exec credential
// plugin that runs "pinniped login"; Write and WriteFile write it. Merge and MergeFile add it to a kubeconfig with
// other entries. Rotate and RotateFile write a new CA bundle into existing kubeconfigs.
package kubeconfig

import (
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Input is the input of Build.
type Input struct {
	Source *Source // its names and connection settings are the defaults
	Suffix string  // appended to the source's names of context, cluster and user
	Names  Names   // replace the source's names and Suffix

	// Server and CABundle replace the source's if Server is set. An empty CABundle means the system roots.
	Server   string
	CABundle []byte

	// TokenFile, if set, is the file from which clients read a bearer token; Exec is then unused.
	TokenFile string
	Exec      Exec
	// Impersonate, if set, is the impersonation that clients send with their credential.
	Impersonate *Impersonation
}

// Names are the names of a context, its cluster and its user; empty means the default.
type Names struct{ Context, Cluster, User string }

// names returns the names of the new entries.
func (in *Input) names() Names {
	return Names{
		Context: cmp.Or(in.Names.Context, in.Source.ContextName+in.Suffix),
		Cluster: cmp.Or(in.Names.Cluster, in.Source.ClusterName+in.Suffix),
		User:    cmp.Or(in.Names.User, in.Source.UserName+in.Suffix),
	}
}

// Build returns a kubeconfig with one cluster, one user and one context, which is the current one.
//
// If Server is not the source's, it is another endpoint: settings of the old one (tls-server-name,
// insecure-skip-tls-verify) are dropped, and settings of the path (proxy-url, disable-compression) are kept. The CA
// bundle is always embedded. It returns an error if the bundle contains anything but certificates.
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
		cluster.InsecureSkipTLSVerify = false // client-go rejects the combination
	}

	config := clientcmdapi.NewConfig()
	names := in.names()
	config.Clusters[names.Cluster] = cluster
	config.AuthInfos[names.User] = in.authInfo()
	config.Contexts[names.Context] = &clientcmdapi.Context{Cluster: names.Cluster, AuthInfo: names.User}
	config.CurrentContext = names.Context
	return config, nil
}

func (in *Input) authInfo() *clientcmdapi.AuthInfo {
	if in.TokenFile != "" {
		return &clientcmdapi.AuthInfo{TokenFile: in.TokenFile}
	}
	user := &clientcmdapi.AuthInfo{Exec: in.Exec.config()}
	if in.Impersonate != nil {
		in.Impersonate.SetOn(user)
	}
	return user
}

// CountCertificates returns the number of certificates in a CA bundle (PEM). It returns an error if there are none, or
// if a block is not a certificate or cannot be parsed. The error contains the block's number, but no content.
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

// Source is a context of a kubeconfig with its cluster.
type Source struct {
	ContextName string
	ClusterName string
	UserName    string
	Cluster     *clientcmdapi.Cluster // a copy
}

// Select returns the context contextName, or the current one if that is empty. It returns an error if the context, its
// cluster or its user does not exist.
func Select(config *clientcmdapi.Config, contextName string) (*Source, error) {
	contextName = cmp.Or(contextName, config.CurrentContext)
	if contextName == "" {
		return nil, fmt.Errorf("no context chosen: the kubeconfig has no current-context%s", contexts(config))
	}
	kubeContext, ok := config.Contexts[contextName]
	if !ok || kubeContext == nil {
		return nil, fmt.Errorf("no such context %q%s", contextName, contexts(config))
	}
	cluster, ok := config.Clusters[kubeContext.Cluster]
	if !ok || cluster == nil {
		return nil, fmt.Errorf("no such cluster %q, which context %q refers to", kubeContext.Cluster, contextName)
	}
	if _, ok := config.AuthInfos[kubeContext.AuthInfo]; !ok {
		return nil, fmt.Errorf("no such user %q, which context %q refers to", kubeContext.AuthInfo, contextName)
	}
	if cluster.Server == "" {
		return nil, fmt.Errorf("cluster %q has no server", kubeContext.Cluster)
	}
	return &Source{
		ContextName: contextName,
		ClusterName: kubeContext.Cluster,
		UserName:    kubeContext.AuthInfo,
		Cluster:     cluster.DeepCopy(),
	}, nil
}

// BundleOf returns the CA bundle (PEM) of a cluster: its certificate-authority-data, else the content of its
// certificate-authority file. It is empty if the cluster is verified with the system roots.
func BundleOf(cluster *clientcmdapi.Cluster) ([]byte, error) {
	if len(cluster.CertificateAuthorityData) > 0 || cluster.CertificateAuthority == "" {
		return cluster.CertificateAuthorityData, nil
	}
	return ReadNamed(cluster.CertificateAuthority)
}

// CABundle is BundleOf the source's cluster.
func (s *Source) CABundle() ([]byte, error) {
	bundle, err := BundleOf(s.Cluster)
	if err != nil {
		return nil, fmt.Errorf("reading the CA bundle of cluster %q: %w", s.ClusterName, err)
	}
	return bundle, nil
}

// contexts lists the contexts of a kubeconfig, for messages.
func contexts(config *clientcmdapi.Config) string {
	if len(config.Contexts) == 0 {
		return " (it has no contexts)"
	}
	return fmt.Sprintf(" (its contexts: %s)", strings.Join(slices.Sorted(maps.Keys(config.Contexts)), ", "))
}
