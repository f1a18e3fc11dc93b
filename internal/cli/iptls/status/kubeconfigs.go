package status

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// evaluateKubeconfigs sets the outcome of every context that uses the endpoint. others is the number of other contexts.
func (l *snapshot) evaluateKubeconfigs(all []session.Kubeconfig, at kubeconfig.Endpoint) (others int) {
	for _, one := range all {
		file := result.File{Path: one.File, Outcome: result.FileWorks}
		if one.Err != nil {
			file.Outcome, file.Reason = result.FileNotKnown, one.Err.Error()
			l.Kubeconfigs = append(l.Kubeconfigs, file)
			continue
		}
		trusts := kubeconfig.Trusts(one.Config, at)
		for _, name := range slices.Sorted(maps.Keys(one.Config.Contexts)) {
			kubeContext := one.Config.Contexts[name]
			entry, uses := l.evaluateContext(kubeContext, trusts)
			if !uses {
				others++
				continue
			}
			entry.Kind, entry.Name = result.EntryContext, name
			program := kubeconfig.UnknownPlugin(one.Config.AuthInfos[kubeContext.AuthInfo])
			if program != "" && !worse(entry.Outcome, result.FileNotKnown) {
				entry.Outcome = result.FileNotKnown
				entry.Reason = fmt.Sprintf("it logs in with %q, whose trusted CAs are unknown", program)
			}
			file.Entries = append(file.Entries, entry)
			if worse(entry.Outcome, file.Outcome) {
				file.Outcome = entry.Outcome
			}
		}
		if len(file.Entries) > 0 {
			l.Kubeconfigs = append(l.Kubeconfigs, file)
		}
	}
	return others
}

func worse(a, b result.FileOutcome) bool {
	rank := []result.FileOutcome{
		result.FileWorks, result.FileOutdated, result.FileNotKnown, result.FileWillBreak, result.FileBroken,
	}
	return slices.Index(rank, a) > slices.Index(rank, b)
}

// evaluateContext returns the worst outcome for the CA bundles of a context: kubectl uses the cluster's, and the
// credential plugin that in its arguments. uses is false if the context has none for the endpoint.
func (l *snapshot) evaluateContext(in *clientcmdapi.Context, all []kubeconfig.Trust) (entry result.Entry, uses bool) {
	entry.Outcome = result.FileWorks
	for _, one := range all {
		what := "the cluster's CA bundle"
		switch {
		case one.Kind == "cluster" && one.Name == in.Cluster:
		case one.Kind == "user" && one.Name == in.AuthInfo:
			what = "the credential plugin's --concierge-ca-bundle-data"
		default:
			continue
		}
		uses = true
		if found := l.evaluateTrust(one, what); worse(found.Outcome, entry.Outcome) || entry.Reason == "" {
			entry = found
		}
	}
	return entry, uses
}

// evaluateTrust returns the outcome for a CA bundle, with its reason. what names the CA bundle.
func (l *snapshot) evaluateTrust(one kubeconfig.Trust, what string) result.Entry {
	found := func(outcome result.FileOutcome, format string, args ...any) result.Entry {
		return result.Entry{Outcome: outcome, Reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case one.Uncertain:
		return found(result.FileNotKnown, "only a wildcard of the certificate covers %q, so it may be another endpoint",
			one.Host)
	case one.Err != nil:
		return found(result.FileBroken, "%s cannot be read: %s", what, one.Err)
	case one.Insecure:
		return found(result.FileWorks, "it verifies nothing (insecure-skip-tls-verify), so anyone can impersonate the "+
			"cluster")
	}
	refused := func(outcome result.FileOutcome, certificate string, err error) result.Entry {
		if _, name := errors.AsType[x509.HostnameError](err); name {
			entry := found(outcome, "it reaches the proxy as %q, which %s does not cover", one.Host, certificate)
			entry.Code = string(certs.NameNotCovered)
			return entry
		}
		trusts := "the system roots"
		if len(bytes.TrimSpace(one.CABundle)) > 0 {
			trusts = serving.Describe(one.CABundle)
		}
		return found(outcome, "it trusts %s in %s, which does not verify %s: %s", trusts, what, certificate,
			strings.TrimPrefix(err.Error(), "x509: "))
	}
	for _, met := range l.probed {
		if err := verify(met.Chain, one.CABundle, one.Host, l.At); err != nil {
			return refused(result.FileBroken, "the presented certificate", err)
		}
	}
	if err := verify(l.chain, one.CABundle, one.Host, l.At); err != nil {
		return refused(result.FileWillBreak, "the configured certificate", err)
	}
	if !slices.ContainsFunc(l.probed, presents) {
		return found(result.FileNotKnown, "no certificate is presented")
	}
	if difference := differs(one.CABundle, l.bundle); difference != "" {
		return found(result.FileOutdated, "%s %s; reissue the kubeconfig before the CA changes", what, difference)
	}
	return result.Entry{Outcome: result.FileWorks}
}

// differs describes how a bundle differs from the published one, or returns "".
func differs(bundle, published []byte) string {
	mine, _ := certs.ParseBundle(bundle)
	theirs, _ := certs.ParseBundle(published)
	without := func(some, others []*x509.Certificate) []byte {
		var left []byte
		for _, one := range some {
			if !slices.ContainsFunc(others, one.Equal) {
				left = append(left, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: one.Raw})...)
			}
		}
		return left
	}
	lacks, extra := without(theirs, mine), without(mine, theirs)
	switch {
	case len(theirs) == 0 && len(mine) > 0:
		return "has " + serving.Describe(bundle) + ", but no CA bundle is published now, so clients use their system roots"
	case len(mine) == 0 && len(theirs) > 0:
		return "is empty, but " + serving.Describe(published) + " is published now"
	case len(lacks) > 0:
		return "lacks " + serving.Describe(lacks) + ", which is published now"
	case len(extra) > 0:
		return "has " + serving.Describe(extra) + ", which is no longer published"
	}
	return ""
}

func presents(one session.Met) bool { return len(one.Chain) > 0 }

// verify verifies a chain, if any, as kubectl does: without a bundle by the system roots, without a host for any name.
func verify(chain []*x509.Certificate, bundle []byte, host string, now time.Time) error {
	if len(chain) == 0 {
		return nil
	}
	options := x509.VerifyOptions{
		DNSName: host, Intermediates: x509.NewCertPool(), CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if len(bytes.TrimSpace(bundle)) > 0 {
		options.Roots = x509.NewCertPool()
		options.Roots.AppendCertsFromPEM(bundle)
	}
	for _, certificate := range chain[1:] {
		options.Intermediates.AddCert(certificate)
	}
	_, err := chain[0].Verify(options)
	return err
}
