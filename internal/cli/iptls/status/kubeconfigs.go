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

// presented is what kubeconfigs are checked against.
type presented struct {
	at         kubeconfig.Endpoint
	chains     [][]*x509.Certificate // currently presented
	configured []*x509.Certificate   // not yet presented; nil if unknown
	bundle     []byte                // published
	now        time.Time
	roots      *x509.CertPool // nil for the system roots
}

// evaluateKubeconfigs checks every context that uses the endpoint. others is the number of other contexts.
func (s *presented) evaluateKubeconfigs(all []session.Kubeconfig) (judged []result.File, others int) {
	for _, one := range all {
		file := result.File{Path: one.File, Outcome: result.FileWorks}
		if one.Err != nil {
			file.Outcome, file.Reason = result.FileNotKnown, one.Err.Error()
			judged = append(judged, file)
			continue
		}
		trusts := kubeconfig.Trusts(one.Config, s.at)
		for _, name := range slices.Sorted(maps.Keys(one.Config.Contexts)) {
			of := trustsOf(trusts, one.Config.Contexts[name])
			if len(of) == 0 {
				others++
				continue
			}
			entry := s.evaluateContext(name, of)
			program := kubeconfig.UnknownPlugin(one.Config.AuthInfos[one.Config.Contexts[name].AuthInfo])
			if program != "" && worse(entry.Outcome, result.FileNotKnown) == result.FileNotKnown {
				entry.Outcome = result.FileNotKnown
				entry.Reason = fmt.Sprintf("it logs in with %q, whose trusted CAs are unknown", program)
			}
			file.Entries = append(file.Entries, entry)
			file.Outcome = worse(file.Outcome, entry.Outcome)
		}
		if len(file.Entries) > 0 {
			judged = append(judged, file)
		}
	}
	return judged, others
}

// worse returns the more important outcome.
func worse(a, b result.FileOutcome) result.FileOutcome {
	rank := []result.FileOutcome{
		result.FileWorks, result.FileOutdated, result.FileNotKnown, result.FileWillBreak, result.FileBroken,
	}
	if slices.Index(rank, b) > slices.Index(rank, a) {
		return b
	}
	return a
}

// anchor is a CA bundle in a kubeconfig for the endpoint.
type anchor struct {
	kubeconfig.Trust
	what string
}

// trustsOf returns the CA bundles of a context: kubectl uses the cluster's, and the credential plugin that in its
// arguments.
func trustsOf(all []kubeconfig.Trust, kubeContext *clientcmdapi.Context) []anchor {
	var trusts []anchor
	for _, one := range all {
		switch {
		case one.Kind == "cluster" && one.Name == kubeContext.Cluster:
			trusts = append(trusts, anchor{one, "the cluster's CA bundle"})
		case one.Kind == "user" && one.Name == kubeContext.AuthInfo:
			trusts = append(trusts, anchor{one, "the credential plugin's --concierge-ca-bundle-data"})
		}
	}
	return trusts
}

func (s *presented) evaluateContext(name string, trusts []anchor) result.Entry {
	entry := result.Entry{Kind: result.EntryContext, Name: name, Outcome: result.FileWorks}
	for _, one := range trusts {
		found := s.evaluateTrust(one)
		if worse(entry.Outcome, found.Outcome) != entry.Outcome || entry.Reason == "" {
			entry.Outcome, entry.Reason, entry.Code = found.Outcome, found.Reason, found.Code
		}
	}
	return entry
}

// evaluateTrust returns the outcome for a CA bundle, with its reason.
func (s *presented) evaluateTrust(one anchor) result.Entry {
	found := func(outcome result.FileOutcome, format string, args ...any) result.Entry {
		return result.Entry{Outcome: outcome, Reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case one.Uncertain:
		return found(
			result.FileNotKnown,
			"%q is covered only by a wildcard, so it may be another endpoint",
			one.Host,
		)
	case one.Err != nil:
		return found(result.FileBroken, "%s cannot be read: %s", one.what, one.Err)
	case one.Insecure:
		return found(
			result.FileWorks,
			"it verifies nothing (insecure-skip-tls-verify), so anyone can impersonate the cluster",
		)
	}
	refused := func(outcome result.FileOutcome, what string, err error) result.Entry {
		if _, name := errors.AsType[x509.HostnameError](err); name {
			entry := found(outcome, "it reaches the proxy as %q, which %s does not cover", one.Host, what)
			entry.Code = string(certs.NameNotCovered)
			return entry
		}
		trusts := "the system roots"
		if len(bytes.TrimSpace(one.CABundle)) > 0 {
			trusts = serving.Describe(one.CABundle)
		}
		return found(outcome, "it trusts %s in %s, which does not verify %s: %s", trusts, one.what, what,
			strings.TrimPrefix(err.Error(), "x509: "))
	}
	for _, chain := range s.chains {
		if err := s.verify(one, chain); err != nil {
			return refused(result.FileBroken, "the presented certificate", err)
		}
	}
	if s.configured != nil {
		if err := s.verify(one, s.configured); err != nil {
			return refused(result.FileWillBreak, "the configured certificate", err)
		}
	}
	if len(s.chains) == 0 {
		return found(result.FileNotKnown, "no certificate is presented")
	}
	if difference := differs(one.CABundle, s.bundle); difference != "" {
		return found(result.FileOutdated, "%s %s; reissue the kubeconfig before the CA changes", one.what, difference)
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

func (s *presented) verify(one anchor, chain []*x509.Certificate) error {
	options := x509.VerifyOptions{
		DNSName: one.Host, Roots: s.roots, Intermediates: x509.NewCertPool(), CurrentTime: s.now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if len(bytes.TrimSpace(one.CABundle)) > 0 {
		options.Roots = x509.NewCertPool()
		options.Roots.AppendCertsFromPEM(one.CABundle) // like kubectl
	}
	for _, certificate := range chain[1:] {
		options.Intermediates.AddCert(certificate)
	}
	_, err := chain[0].Verify(options)
	return err
}
