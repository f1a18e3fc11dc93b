package status

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// servedNow is what a kubeconfig is judged against.
type servedNow struct {
	at         plan.Endpoint
	addresses  []netip.Addr
	chains     [][]*x509.Certificate // presented now
	configured []*x509.Certificate   // that will be; nil when it is not known
	bundle     []byte                // advertised
	now        time.Time
	roots      *x509.CertPool // nil for the system roots
}

// judgeKubeconfigs looks at every context that leads to the endpoint. others is how many do not.
func (s *servedNow) judgeKubeconfigs(all []session.Kubeconfig) (judged []KubeconfigStatus, others int) {
	for _, one := range all {
		names := make([]string, 0, len(one.Config.Contexts))
		for name := range one.Config.Contexts {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			trusts := s.trustsOf(one.Config, one.Config.Contexts[name])
			if len(trusts) == 0 {
				others++
				continue
			}
			judged = append(judged, s.judgeContext(one.File, name, trusts))
		}
	}
	return judged, others
}

// trust is one CA bundle in a kubeconfig with which the endpoint is verified.
type trust struct {
	what     string
	host     string // as the kubeconfig has it
	bundle   []byte // empty: the system roots
	insecure bool
	problem  string
}

// trustsOf returns what a context verifies the endpoint with: kubectl does by the cluster's CA, and our credential plugin by
// its own arguments.
func (s *servedNow) trustsOf(config *clientcmdapi.Config, kubeContext *clientcmdapi.Context) []trust {
	var trusts []trust
	if cluster := config.Clusters[kubeContext.Cluster]; cluster != nil && s.leadsHere(cluster.Server) {
		one := trust{what: "the cluster's CA bundle", host: hostOf(cluster.Server), bundle: cluster.CertificateAuthorityData, insecure: cluster.InsecureSkipTLSVerify}
		if len(one.bundle) == 0 && cluster.CertificateAuthority != "" {
			var err error
			if one.bundle, err = os.ReadFile(cluster.CertificateAuthority); err != nil {
				one.problem = err.Error()
			}
		}
		if cluster.TLSServerName != "" {
			one.host = cluster.TLSServerName
		}
		trusts = append(trusts, one)
	}
	user := config.AuthInfos[kubeContext.AuthInfo]
	if user == nil || user.Exec == nil {
		return trusts
	}
	values := map[string]string{}
	for _, argument := range user.Exec.Args {
		if name, value, ok := strings.Cut(argument, "="); ok {
			values[name] = value
		}
	}
	if at := values["--concierge-endpoint"]; s.leadsHere(at) {
		one := trust{what: "the credential plugin's --concierge-ca-bundle-data", host: hostOf(at)}
		var err error
		if one.bundle, err = base64.StdEncoding.DecodeString(values["--concierge-ca-bundle-data"]); err != nil {
			one.problem = "it is not base64"
		}
		trusts = append(trusts, one)
	}
	return trusts
}

func hostOf(server string) string {
	at, err := plan.ParseAdvertised(server)
	if err != nil {
		return ""
	}
	return at.Host
}

// leadsHere says whether a server's URL names the endpoint, or one of its addresses.
func (s *servedNow) leadsHere(server string) bool {
	if parsed, err := url.Parse(server); err != nil || parsed.Host == "" {
		return false
	}
	at, err := plan.ParseAdvertised(server)
	if err != nil || at.Port != s.at.Port {
		return false
	}
	if plan.SameHost(at.Host, s.at.Host) {
		return true
	}
	addr, err := netip.ParseAddr(at.Host)
	return err == nil && slices.Contains(s.addresses, addr.Unmap())
}

func (s *servedNow) judgeContext(file, name string, trusts []trust) KubeconfigStatus {
	status := KubeconfigStatus{File: file, Context: name, Verdict: kubeconfigWorks}
	rank := []string{kubeconfigWorks, kubeconfigOutdated, kubeconfigNotKnown, kubeconfigWillBreak, kubeconfigBroken}
	for _, one := range trusts {
		verdict, reason := s.judgeTrust(one)
		if slices.Index(rank, verdict) > slices.Index(rank, status.Verdict) || status.Reason == "" {
			status.Verdict, status.Reason = verdict, reason
		}
	}
	return status
}

func (s *servedNow) judgeTrust(one trust) (verdict, reason string) {
	switch {
	case one.problem != "":
		return kubeconfigBroken, one.what + " cannot be read: " + one.problem
	case one.insecure:
		return kubeconfigWorks, "it verifies nothing (insecure-skip-tls-verify): anybody can pretend to be the cluster"
	}
	trusts := "it trusts " + plan.DescribePEM(one.bundle)
	if len(bytes.TrimSpace(one.bundle)) == 0 {
		trusts = "it trusts the system roots"
	}
	for _, chain := range s.chains {
		if err := s.verify(one, chain); err != nil {
			return kubeconfigBroken, fmt.Sprintf("%s in %s, which does not verify what is presented: %s", trusts, one.what, err)
		}
	}
	if s.configured != nil {
		if err := s.verify(one, s.configured); err != nil {
			return kubeconfigWillBreak, fmt.Sprintf("%s in %s, which does not verify the configured certificate: %s", trusts, one.what, err)
		}
	}
	if len(s.chains) == 0 {
		return kubeconfigNotKnown, "nothing is presented that could be verified"
	}
	if difference := differs(one.bundle, s.bundle); difference != "" {
		return kubeconfigOutdated, fmt.Sprintf("%s %s: make it anew before the CA changes", one.what, difference)
	}
	return kubeconfigWorks, ""
}

// differs says how a bundle differs from the advertised one; empty when it does not.
func differs(bundle, advertised []byte) string {
	mine, _ := certs.ParseBundle(bundle)
	theirs, _ := certs.ParseBundle(advertised)
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
		return "has " + plan.DescribePEM(bundle) + ", but the system roots are what clients are told to use now"
	case len(mine) == 0 && len(theirs) > 0:
		return "is empty, but " + plan.DescribePEM(advertised) + " is advertised now"
	case len(lacks) > 0:
		return "lacks " + plan.DescribePEM(lacks) + ", which is advertised now"
	case len(extra) > 0:
		return "has " + plan.DescribePEM(extra) + ", which is not advertised any more"
	}
	return ""
}

func (s *servedNow) verify(one trust, chain []*x509.Certificate) error {
	options := x509.VerifyOptions{
		DNSName: one.host, Roots: s.roots, Intermediates: x509.NewCertPool(), CurrentTime: s.now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if len(bytes.TrimSpace(one.bundle)) > 0 {
		options.Roots = x509.NewCertPool()
		options.Roots.AppendCertsFromPEM(one.bundle) // as kubectl does
	}
	for _, certificate := range chain[1:] {
		options.Intermediates.AddCert(certificate)
	}
	_, err := chain[0].Verify(options)
	if err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "x509: "))
	}
	return nil
}
