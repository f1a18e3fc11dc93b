package status

import (
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// codeAgentNotRunning is the code of the problem that no replica of the agent lives.
const codeAgentNotRunning = "AgentNotRunning"

// seen is one address of the endpoint, as a client with the advertised CA bundle finds it.
type seen struct {
	certs.Served
	refused *certs.Finding // why the client gives up; nil when it does not
}

// concludeUsers says how users fare, from what the addresses present and which kubeconfigs work with that.
func (l *snapshot) concludeUsers() {
	l.Users = l.usersAtEndpoint()
	if broken, all := l.brokenContexts(); l.Users.State == result.UsersNotAffected && broken > 0 {
		l.Users.State, l.Users.Code = result.UsersSomeRefused, string(certs.OldClientsBreak)
		l.Users.Message = fmt.Sprintf("refused with %d of the %d contexts below, which do not trust the certificate in "+
			"service; not affected with the advertised CA bundle", broken, all)
	}
	code := l.Users.Code
	if code == "" && len(l.Problems) > 0 {
		code = l.Problems[0].Code
	}
	if l.Users.State != result.UsersNotAffected || len(l.Problems) > 0 {
		l.Users.Next = l.next(code)
	}
}

func (l *snapshot) usersAtEndpoint() result.Users {
	var refused []seen
	for _, one := range l.seen {
		if one.refused != nil {
			refused = append(refused, one)
		}
	}
	switch {
	case l.view.Disabled:
		return result.Users{
			State: result.UsersSwitchedOff, Code: l.disabledCode(),
			Message: "nobody gets in this way: the impersonation proxy is switched off",
		}
	case l.view.At.Host == "":
		return result.Users{State: result.UsersNotKnown, Message: "not known: no endpoint is advertised at which to look"}
	case len(l.seen) == 0 && len(l.Addresses) > 0:
		return result.Users{
			State: result.UsersNotKnown, Message: "not known: there is no route from here to any address of the endpoint",
		}
	case len(l.seen) == 0:
		return result.Users{
			State: result.UsersNotKnown, Code: string(certs.EndpointUnreachable),
			Message: fmt.Sprintf("not known: %s resolves to no address here", l.view.At.Host),
		}
	case len(refused) == 0:
		return l.notAffected()
	}
	users := l.cause(refused[0])
	if len(refused) == len(l.seen) {
		users.State, users.Message = result.UsersAllRefused, "all refused"+users.Message
		return users
	}
	users.State = result.UsersSomeRefused
	users.Message = fmt.Sprintf("refused at %d of %d addresses", len(refused), len(l.seen)) + users.Message
	return users
}

// cause fills in the code, the time and the end of the sentence for users who are refused.
func (l *snapshot) cause(one seen) result.Users {
	users := result.Users{Code: string(one.refused.Code)}
	why := ""
	switch one.refused.Code {
	case certs.Expired:
		why = "the certificate in service expired"
		until := one.Chain[0].NotAfter.UTC()
		users.Since = &until
	case certs.NotYetValid:
		why = "the certificate in service is not valid before " + one.Chain[0].NotBefore.UTC().Format(time.RFC3339)
	case certs.NameNotCovered:
		why = fmt.Sprintf("the certificate in service does not cover %s", l.view.At.Host)
	case certs.BundleDoesNotVerify:
		why = "the advertised CA bundle does not verify the certificate in service"
	default:
		why = one.Address + " does not answer"
		if l.Agent != nil && l.Agent.Running == result.AnswerNo {
			why, users.Code, users.Since = "the agent does not run", codeAgentNotRunning, l.Agent.LastSeen
		}
	}
	if users.Since != nil {
		users.Message = " since " + users.Since.Format(time.RFC3339)
	}
	users.Message += " (" + why + ")"
	return users
}

func (l *snapshot) notAffected() result.Users {
	users := result.Users{State: result.UsersNotAffected}
	for _, one := range l.seen {
		if until := one.Chain[0].NotAfter.UTC(); users.Until == nil || until.Before(*users.Until) {
			users.Until = &until
		}
	}
	what := "the certificate in service is good"
	switch {
	case l.agentFinds(configv1alpha1.CodeLastGoodCertificateServed):
		what = "the last good certificate serves"
	case l.agentFinds(configv1alpha1.CodeGeneratedCertificateServed):
		what = "the generated certificate is served instead, and is good"
	}
	users.Message = fmt.Sprintf("not affected; %s until %s", what, users.Until.Format(time.RFC3339))
	return users
}

// brokenContexts counts the contexts that do not verify what is presented, and all of them.
func (l *snapshot) brokenContexts() (broken, all int) {
	for _, file := range l.Kubeconfigs {
		for _, entry := range file.Entries {
			all++
			if entry.Outcome == result.FileBroken {
				broken++
			}
		}
	}
	return broken, all
}

// agentFinds says whether the agent reports a finding with this code.
func (l *snapshot) agentFinds(code string) bool {
	strategy := plan.ProxyStrategy(l.issuer)
	return strategy != nil && slices.ContainsFunc(strategy.Findings,
		func(f configv1alpha1.StrategyFinding) bool { return f.Code == code })
}

// disabledCode is why the proxy is switched off.
func (l *snapshot) disabledCode() string {
	for _, code := range []string{configv1alpha1.CodeDisabledBySpec, configv1alpha1.CodeDisabledByNodes} {
		if l.agentFinds(code) {
			return code
		}
	}
	return ""
}

// agentProblem says what the agent reports, by its findings where it lists some.
func (l *snapshot) agentProblem() {
	strategy := plan.ProxyStrategy(l.issuer)
	if strategy != nil && strategy.Status != configv1alpha1.StrategySuccess {
		for _, f := range strategy.Findings {
			if f.Severity == configv1alpha1.FindingError {
				l.problem(f.Code, "the agent reports %s: %s", f.Code, f.Message)
				return
			}
		}
	}
	l.problem("", "%s", l.view.Problem)
}

// otherCA says what is wrong when the Secret was renewed from another CA, which clients do not trust. This one cause has
// many consequences, so it is told first.
func (l *snapshot) otherCA() {
	if l.secret == nil || len(l.chain) == 0 || l.spec.TLS == nil {
		return
	}
	verifies := func(bundle []byte) bool {
		pool := x509.NewCertPool()
		return pool.AppendCertsFromPEM(bundle) && verify(l.chain, pool, l.At) == nil
	}
	wanted, err := plan.AdvertisedBundle(*l.spec.TLS, l.secret)
	if err != nil || len(wanted) == 0 || l.At.After(l.chain[0].NotAfter) {
		return
	}
	name := l.Configured.Secret.Namespace + "/" + l.Configured.Secret.Name
	switch own := l.secret.Data[plan.CABundleKey]; {
	case verifies(wanted):
	case l.spec.TLS.CertificateAuthorityData != "" && verifies(own):
		l.problem(string(certs.BundleDoesNotVerify), "Secret %q has a certificate of another CA, and the old bundle of the "+
			"CredentialIssuer was used: it does not verify that certificate, ca.crt of the Secret does", name)
	default:
		l.problem(string(certs.BundleDoesNotVerify), "Secret %q has a certificate of another CA (%s), which the CA bundle "+
			"for clients does not verify", name, l.chain[0].Issuer)
	}
}

func verify(chain []*x509.Certificate, roots *x509.CertPool, now time.Time) error {
	options := x509.VerifyOptions{
		Roots: roots, Intermediates: x509.NewCertPool(), CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, certificate := range chain[1:] {
		options.Intermediates.AddCert(certificate)
	}
	_, err := chain[0].Verify(options)
	return err
}

// endpointProblems adds what is wrong at the addresses, each cause once. What follows from another problem is left out:
// an endpoint that presents what the agent says it serves meanwhile, or that does not answer as no agent runs.
func (l *snapshot) endpointProblems() {
	byCode := map[certs.Code][]string{}
	var order []certs.Code
	for _, address := range l.Addresses {
		if address.Code == "" || l.follows(address) {
			continue
		}
		if byCode[address.Code] == nil {
			order = append(order, address.Code)
		}
		byCode[address.Code] = append(byCode[address.Code], address.Address+" "+address.Problem)
	}
	for _, code := range order {
		l.problem(string(code), "%s", strings.Join(byCode[code], "; "))
	}
}

func (l *snapshot) follows(address result.Address) bool {
	serving := l.issuer.Status.ServingCertificate
	switch address.Code {
	case certs.EndpointServesOther:
		return len(l.Problems) > 0 && serving != nil && serving.SHA256 == address.SHA256
	case certs.EndpointUnreachable:
		return l.hasProblem(codeAgentNotRunning)
	default:
		return false
	}
}
