// Package kubeconfig builds and writes kubeconfigs that log in with the pinniped CLI. It never contacts a cluster.
//
// Select picks the context of an existing kubeconfig that the new one is for; Build makes the new one, with an exec
// credential plugin that runs "pinniped login"; Write and WriteFile put it out. Merge and MergeFile put it into a
// kubeconfig that has other entries as well. Rotate and RotateFile put a new CA
// bundle into kubeconfigs that users have already.
package kubeconfig

import (
	"cmp"
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
	Names  Names   // replace the source's names, suffix included

	// Server and CABundle replace the source's when Server is set. An empty CABundle means the system roots.
	Server   string
	CABundle []byte

	// TokenFile, if set, is the file from which clients read a bearer token, instead of running Exec.
	TokenFile string
	Exec      Exec
	// Impersonate, if set, is as whom clients act next to their credential.
	Impersonate *Impersonation
}

// Names are those of a context, its cluster and its user. Empty ones are not chosen.
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
