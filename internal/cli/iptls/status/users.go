package status

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Codes of problems that are neither from a check nor from the agent.
const (
	codeAgentNotRunning = "AgentNotRunning" // no replica of the agent is alive
	codeNoResponse      = "NoAnswer"        // the certificate is good, but requests get no response
	codeEndpointMoved   = "EndpointMoved"   // clients in use have another endpoint, which fails
	codeGeneratedServes = "GeneratedServes" // the generated certificate is in service, but revisions in use have another
)

// judgeClients sets whether the clients of each revision work. Without revisions, it uses the published trust bundle.
func (l *snapshot) judgeClients() {
	if len(l.history.Revisions) == 0 && (len(l.bundle) > 0 || l.Published != nil || l.Configured == nil) {
		l.history = serving.History{}.With(
			serving.Revision{Endpoint: l.view.At.URL, Bundle: l.bundle, Names: []string{l.view.At.Host}})
	}
	l.Clients = session.ClientStates(l.history, l.probed, l.elsewhere, l.At)
}

// concludeUsers sets whether users can connect, and what to do next.
func (o *Options) concludeUsers(ctx context.Context, l *snapshot) {
	var fix string
	l.Users, fix = l.usersAtEndpoint()
	var all []result.Entry
	for _, file := range l.Kubeconfigs {
		all = append(all, file.Entries...)
	}
	broken := slices.DeleteFunc(slices.Clone(all), func(e result.Entry) bool { return e.Outcome != result.FileBroken })
	if l.Users.State == result.UsersNotAffected && len(broken) > 0 {
		l.Users.State, l.Users.Code = result.UsersSomeRefused, string(certs.OldClientsBreak)
		why := "do not trust the certificate in service"
		trust := func(e result.Entry) bool { return e.Code != string(certs.NameNotCovered) }
		if !slices.ContainsFunc(broken, trust) {
			why, l.Users.Code = "use a name that the certificate in service does not cover", string(certs.NameNotCovered)
		}
		l.Users.Message = fmt.Sprintf("users of %d of the %d contexts below are refused: their contexts %s; users with the "+
			"published CA bundle and endpoint are not affected", len(broken), len(all), why)
	}
	fix = cmp.Or(fix, l.Users.Code)
	if fix == "" && len(l.Problems) > 0 {
		fix = l.Problems[0].Code
	}
	if l.Users.State != result.UsersNotAffected || len(l.Problems) > 0 {
		l.Users.Next = o.next(ctx, l, fix)
	} else if l.Transition != nil {
		l.Users.Next = o.next(ctx, l, configv1alpha1.CodeTransitionPrepared)
	}
}

func usersNotKnown(why string, next ...string) result.Users {
	return result.Users{State: result.UsersNotKnown, Message: "not known: " + why, Next: next}
}

// usersAtEndpoint returns whether users can connect. fix is the code to fix, if it is not the users' own.
func (l *snapshot) usersAtEndpoint() (users result.Users, fix string) {
	var refusing, silent []session.Met // where no client works
	for _, one := range l.probed {
		if len(one.Chain) == 0 || l.noneAccepts(one) {
			refusing = append(refusing, one)
		} else if one.Silent() {
			silent = append(silent, one)
		}
	}
	switch out := len(refusing) + len(silent); {
	case l.view.Disabled:
		users.State, users.Message = result.UsersSwitchedOff, "no user can connect: the impersonation proxy is off"
		for _, code := range []string{configv1alpha1.CodeDisabledByNodes, configv1alpha1.CodeDisabledBySpec} {
			if l.agentFinds(code) {
				users.Code = code
			}
		}
		return users, ""
	case l.view.At.Host == "":
		return usersNotKnown("no endpoint is published yet"), ""
	case len(l.probed) == 0 && len(l.Addresses) > 0:
		return usersNotKnown("there is no route from here to any address of the endpoint"), ""
	case len(l.probed) == 0:
		users = usersNotKnown(l.view.At.Host + " resolves to no address here")
		users.Code = string(certs.EndpointUnreachable)
		return users, ""
	case len(l.Clients) == 0 && out == 0:
		return usersNotKnown("no published CA bundle lets users verify the certificate in service"), ""
	case out > 0:
		users = l.cause(slices.Concat(refusing, silent)[0])
		if out < len(l.probed) {
			users.State = result.UsersSomeRefused
			users.Message = fmt.Sprintf("refused at %d of %d addresses", out, len(l.probed)) + users.Message
			return users, ""
		}
		who := "all refused"
		if len(refusing) == 0 {
			who = "no user gets a response"
		}
		users.State, users.Message = result.UsersAllRefused, who+users.Message
		return users, l.fixes(users.Code)
	}
	if users, some := l.someStates(); some {
		return users, l.fixes(users.Code)
	}
	return l.notAffected(), ""
}

func (l *snapshot) noneAccepts(one session.Met) bool {
	return len(l.Clients) > 0 && l.refusal(one, "") != nil &&
		!slices.ContainsFunc(session.ClientStates(l.history, []session.Met{one}, nil, l.At), works)
}

func works(state result.ClientState) bool {
	return state.Outcome == result.ClientsWork || state.Outcome == result.ClientsPartlyRefused
}

func (l *snapshot) someStates() (users result.Users, some bool) {
	users.State = result.UsersSomeRefused
	var sentences []string
	for _, state := range l.Clients {
		if !state.Refused() {
			continue
		}
		if users.Code == "" {
			users.Code, users.Since = string(state.Code), state.RefusedSince
		}
		if text := l.sentence(state); !slices.Contains(sentences, text) {
			sentences = append(sentences, text)
		}
	}
	const most = 3
	if more := len(sentences) - most; more > 0 {
		sentences = append(sentences[:most], fmt.Sprintf("and %d more groups", more))
	}
	users.Message = strings.Join(sentences, "; ")
	if slices.ContainsFunc(l.Clients, works) {
		users.Message += "; others work"
	}
	return users, len(sentences) > 0
}

func (l *snapshot) sentence(state result.ClientState) string {
	who := "users with kubeconfigs made " + l.when(state)
	if state.Outcome == result.ClientsPartlyRefused {
		who += ", at some addresses,"
		if state.Code == certs.NameNotCovered {
			who = "users who reach the proxy as " + strings.Join(state.RefusedNames, " or ")
		}
	}
	verb, since := "have been refused", ""
	switch {
	case state.RefusedSince == nil:
		verb = "are refused"
	case state.Until != nil && state.Until.Equal(*state.RefusedSince) && strings.HasPrefix(who, "users with"):
		since = " since then"
	default:
		since = " since " + clock(*state.RefusedSince)
	}
	return fmt.Sprintf("%s %s%s (%s; %s)", who, verb, since, state.Message, state.Code)
}

// when returns the time in which kubeconfigs of a revision were created.
func (l *snapshot) when(state result.ClientState) string {
	earlier := func(other result.ClientState) bool {
		return other.ID != state.ID && !other.Refused() && other.Since != nil && state.Until != nil &&
			other.Since.Before(*state.Until)
	}
	switch {
	case state.Until == nil && state.Since == nil:
		return "so far"
	case state.Until == nil:
		return "since " + clock(*state.Since)
	case state.Since == nil || !slices.ContainsFunc(l.Clients, earlier):
		return "before " + clock(*state.Until)
	}
	return "between " + clock(*state.Since) + " and " + clock(*state.Until)
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// fixes returns the code of the problem to fix when users fail; it is empty if that is the users' own code.
func (l *snapshot) fixes(code string) string {
	generated := plan.IsGenerated(l.bundle)
	if inService := l.issuer.Status.ServingCertificate; inService != nil {
		generated = inService.Source == configv1alpha1.ServingCertificateGenerated
	}
	switch {
	case l.moved(code):
		return codeEndpointMoved
	case code == string(certs.NameNotCovered), code == codeNoResponse:
		return ""
	case generated && l.Configured != nil && plan.ServesGenerated(l.spec.TLS) && len(l.Clients) > 1:
		return codeGeneratedServes
	case len(l.Problems) > 0 && l.Problems[0].Code != "": // the cause
		return l.Problems[0].Code
	case slices.ContainsFunc(l.Clients, func(s result.ClientState) bool { return s.Outcome == result.ClientsWork }):
		return string(certs.OldClientsBreak)
	}
	return ""
}

// moved reports whether all clients that fail with a code use an endpoint that is no longer published.
func (l *snapshot) moved(code string) bool {
	fails := func(s result.ClientState) bool { return s.Refused() && string(s.Code) == code }
	here := func(s result.ClientState) bool {
		other, err := plan.ParseEndpoint(s.Endpoint)
		return fails(s) && (err != nil || other == l.view.At)
	}
	return slices.ContainsFunc(l.Clients, fails) && !slices.ContainsFunc(l.Clients, here) && len(l.probed) > 0 &&
		presents(l.probed[0]) && (code == string(certs.EndpointUnreachable) || code == string(certs.NameNotCovered))
}

// cause returns the code, the time and the rest of the message for users who fail.
func (l *snapshot) cause(one session.Met) result.Users {
	refused := l.refusal(one, "")
	if refused == nil {
		return result.Users{Code: codeNoResponse, Message: fmt.Sprintf(" (%s %s)", one.Address, silence(one))}
	}
	users, why := result.Users{Code: string(refused.Code)}, ""
	switch refused.Code {
	case certs.Expired:
		why, users.Since = "the certificate in service expired", new(one.Chain[0].NotAfter.UTC())
	case certs.NotYetValid:
		why = "the certificate in service is not valid before " + one.Chain[0].NotBefore.UTC().Format(time.RFC3339)
	case certs.NameNotCovered:
		why = "the certificate in service does not cover " + l.view.At.Host
	case certs.BundleDoesNotVerify:
		why = "the published CA bundle does not verify the certificate in service"
		if n := len(l.Clients); l.Published == nil && n > 0 && l.Configured != nil {
			why = l.Clients[n-1].Message // nothing is published
		}
	default:
		why = one.Address + " does not respond"
		if l.Agent != nil && l.Agent.Running == result.AnswerNo {
			why, users.Code, users.Since = "the agent is not running", codeAgentNotRunning, l.Agent.LastSeen
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
	for _, one := range l.probed {
		if until := one.Chain[0].NotAfter.UTC(); users.Until == nil || until.Before(*users.Until) {
			users.Until = &until
		}
	}
	what := "the certificate in service is good"
	if l.agentFinds(configv1alpha1.CodeLastKnownGoodCertificateServed) {
		what = "the last known good certificate is served"
	} else if l.agentFinds(configv1alpha1.CodeGeneratedCertificateServed) {
		what = "the generated certificate is served instead, and is good"
	}
	users.Message = fmt.Sprintf("not affected; %s until %s", what, users.Until.Format(time.RFC3339))
	if t := l.Transition; t != nil {
		users.Message += "; " + t.Waits()
		if by := l.RenewedBy; by != nil && by.Kind == result.CertManagerCertificate && l.spec.TLS.SecretName == t.SecretName {
			users.Message += "; if " + cmp.Or(by.Issuer, "its issuer") + " is the wrong issuer, correct it in the Certificate"
		}
	}
	return users
}

func (l *snapshot) agentFinds(code string) bool {
	strategy := serving.Strategy(l.issuer)
	return strategy != nil &&
		slices.ContainsFunc(strategy.Findings, func(f configv1alpha1.StrategyFinding) bool { return f.Code == code })
}

// otherCA adds a problem if the Secret was renewed by another CA, or another CA bundle is configured, so that wanted
// does not verify the certificate. It comes first, because it has many consequences.
func (l *snapshot) otherCA(wanted []byte) {
	if len(l.chain) == 0 || len(wanted) == 0 || l.At.After(l.chain[0].NotAfter) {
		return
	}
	verifies := func(bundle []byte) bool {
		return len(bytes.TrimSpace(bundle)) > 0 && verify(l.chain, bundle, "", l.At) == nil
	}
	name := l.Configured.Secret.Namespace + "/" + l.Configured.Secret.Name
	switch own := l.secret.Data[plan.CABundleKey]; {
	case verifies(wanted):
	case l.spec.TLS.CertificateAuthorityData != "" && verifies(own):
		l.problem(string(certs.BundleDoesNotVerify), "the CA bundle of the CredentialIssuer (%s) does not verify the "+
			"certificate in Secret %q; ca.crt of the Secret does", serving.Describe(wanted), name)
	default:
		l.problem(string(certs.BundleDoesNotVerify), "the CA bundle for clients (%s) does not verify the certificate in "+
			"Secret %q, which %q issued", serving.Describe(wanted), name, l.chain[0].Issuer)
	}
}

// endpointProblems adds the problems at the addresses, one per cause. It leaves out consequences of other problems: an
// endpoint that presents what the agent reports to serve instead, or that does not respond because no agent runs.
func (l *snapshot) endpointProblems() {
	inService, before := l.issuer.Status.ServingCertificate, len(l.Problems)
	for _, address := range l.Addresses {
		follows := address.Code == certs.EndpointUnreachable && l.hasProblem(codeAgentNotRunning) ||
			address.Code == certs.EndpointServesOther && before > 0 && inService != nil &&
				inService.SHA256 == address.SHA256
		if address.Problem == "" || address.Skipped || follows {
			continue
		}
		code, text := cmp.Or(string(address.Code), codeNoResponse), address.Address+" "+address.Problem
		same := func(p result.Problem) bool { return p.Code == code }
		if at := slices.IndexFunc(l.Problems[before:], same); at >= 0 {
			l.Problems[before+at].Message += "; " + text
		} else {
			l.problem(code, "%s", text)
		}
	}
}
