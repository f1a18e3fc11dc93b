package change

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// maxPlan bounds the file that is read: two CA bundles, as text and as base64, and what was found.
const maxPlan = 2 << 20

// Plan is the part of a dry run's result that `ip-tls apply` reads.
type Plan result.Plan

func newPlan(command string, st *plan.Snapshot, p *plan.Plan) *Plan {
	planned := &Plan{
		Command:   command,
		At:        st.Now.UTC().Truncate(time.Second),
		Namespace: p.Request.Namespace,
		CredentialIssuer: plannedIssuer(
			st.Issuer,
		),
		Wanted:      result.Target(plan.TargetOf(&p.Wanted)),
		CABundlePEM: string(p.Bundle),
		Allow:       p.Request.Allow,
	}
	if p.Wanted.TLS != nil && st.Secret != nil {
		planned.Secret = plannedSecret(st.Secret, p.Report.SHA256)
	}
	return planned
}

func plannedIssuer(issuer *configv1alpha1.CredentialIssuer) result.PlannedObject {
	return result.PlannedObject{
		Name: issuer.Name, UID: string(issuer.UID), ResourceVersion: issuer.ResourceVersion,
		Generation: issuer.Generation,
	}
}

// wantedSecret returns the Secret that the plan's tls block names; it has one.
func (p *Plan) wantedSecret() types.NamespacedName {
	name, _ := delegation.SecretName(p.Wanted.TLS.SecretName, p.Namespace) // what cannot be read is no Secret's name
	return name
}

func plannedSecret(secret *corev1.Secret, fingerprint string) *result.PlannedSecret {
	return &result.PlannedSecret{
		PlannedObject: result.PlannedObject{
			Name: secret.Name, UID: string(secret.UID),
			ResourceVersion: secret.ResourceVersion,
		},
		SHA256:        fingerprint,
		ContentSHA256: contentHash(secret),
	}
}

// contentHash hashes what is public in a Secret, each part with its length.
func contentHash(secret *corev1.Secret) string {
	hash := sha256.New()
	for _, key := range []string{corev1.TLSCertKey, plan.CABundleKey} {
		_, _ = fmt.Fprintf(hash, "%s %d\n", key, len(secret.Data[key])) // a hash never fails
		_, _ = hash.Write(secret.Data[key])
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// moved says what is no longer as it was when the plan was made.
func (p *Plan) moved(st *plan.Snapshot) []string {
	var moved []string
	then, now := p.CredentialIssuer, plannedIssuer(st.Issuer)
	switch {
	case then.UID != now.UID:
		moved = append(moved, fmt.Sprintf("CredentialIssuer %q is another object: it was deleted and made anew",
			now.Name))
	case then.Generation != now.Generation: // unlike the resourceVersion, only a change of the spec moves it
		moved = append(moved, fmt.Sprintf("the configuration in CredentialIssuer %q has changed: it is at generation "+
			"%d, the plan is for %d", now.Name, now.Generation, then.Generation))
	}
	return append(moved, p.secretMoved(st.Secret)...)
}

func (p *Plan) secretMoved(secret *corev1.Secret) []string {
	switch {
	case p.Secret == nil || secret == nil: // that it is gone is found by the checks
		return nil
	case p.Secret.ContentSHA256 == contentHash(secret):
		return nil
	}
	what := "its chain or ca.crt is another one"
	if leaf, _ := certs.ParseBundle(secret.Data[corev1.TLSCertKey]); len(leaf) == 0 {
		what = "there is no certificate in it"
	} else if print := certs.Fingerprint(leaf[0].Raw); print != p.Secret.SHA256 {
		what = fmt.Sprintf("its certificate has SHA-256 %s, the plan is for %s", print, p.Secret.SHA256)
	}
	return []string{fmt.Sprintf("Secret %q has changed: %s", secret.Name, what)}
}

// readPlan decodes a plan, and refuses what it does not know.
func readPlan(content []byte, name string) (*Result, error) {
	wrong := func(err error, hint string) error {
		return ui.WithHint(ui.Usage(fmt.Errorf("reading the plan from %s: %w", name, err)), "%s", hint)
	}
	const how = "make one: pinniped ip-tls set ... --dry-run=server -o yaml > plan.yaml"
	if len(content) > maxPlan {
		return nil, wrong(fmt.Errorf("it is larger than %d bytes", maxPlan), how)
	}
	if strings.TrimSpace(string(content)) == "" {
		return nil, wrong(fmt.Errorf("it is empty"), "did the command that makes it fail? "+how)
	}
	var head result.Head
	if err := yaml.Unmarshal(content, &head); err != nil {
		return nil, wrong(err, how)
	}
	if head.Kind != result.KindPlan {
		return nil, wrong(fmt.Errorf("it is of kind %q, not %q", head.Kind, result.KindPlan), how)
	}
	if head.APIVersion != result.APIVersion {
		return nil, wrong(fmt.Errorf("it has apiVersion %q, and this program knows %q", head.APIVersion,
			result.APIVersion),
			"make and apply a plan with the same version of pinniped")
	}
	var file Result
	if err := yaml.UnmarshalStrict(content, &file); err != nil {
		return nil, wrong(err, "a plan is not meant to be edited; make a new one")
	}
	return &file, checkPlan(&file, wrong)
}

// applicable notes in the plan of a dry run why `ip-tls apply` cannot carry it out.
func (c *Change) applicable(done *Result) {
	if done.Plan == nil {
		return
	}
	switch err := checkPlan(done, func(err error, _ string) error { return err }); {
	case slices.ContainsFunc(done.Changes, plan.FieldChange.OfSecret):
		done.Plan.CannotApply = fmt.Sprintf("it writes the files of --cert and --key into Secret %q, and a plan holds no key",
			done.Secret.Name)
	case err != nil:
		done.Plan.CannotApply = err.Error()
	default:
		return
	}
	if result.Machine(c.Session.Output) {
		c.Session.Progress.Warn("\"ip-tls apply\" cannot carry out this plan: %s", done.Plan.CannotApply)
	}
}

// checkPlan says whether the file is a plan that can be applied at all.
func checkPlan(r *Result, wrong func(error, string) error) error {
	const again = "make a new one"
	switch p := (*Plan)(r.Plan); {
	case p == nil:
		return wrong(fmt.Errorf("it has no plan"), again)
	case r.Outcome == result.OutcomeRefused || !r.Certificate.OK():
		reason := "its dry run was refused"
		if first, found := r.Certificate.First(); found {
			reason += ": " + first.String()
		}
		return ui.WithExitCode(wrong(fmt.Errorf("%s", reason), "mend the cause and plan again"), ui.ExitRefused)
	case p.CannotApply != "":
		return wrong(fmt.Errorf("%s", p.CannotApply), "run the command itself, without --dry-run; or write the Secret in "+
			"another way first, and plan without --cert")
	case p.CredentialIssuer.Name == "" || p.CredentialIssuer.ResourceVersion == "" || p.Namespace == "":
		return wrong(fmt.Errorf("it does not name the CredentialIssuer with its resourceVersion, and the namespace"),
			again)
	case p.Wanted.TLS != nil && (p.Secret == nil || p.Secret.Name != p.wantedSecret().Name ||
		p.Secret.ContentSHA256 == ""):
		return wrong(fmt.Errorf("it does not say what is in Secret %q", p.Wanted.TLS.SecretName),
			"the Secret must be there when the plan is made; "+again)
	}
	for _, code := range r.Plan.Allow {
		if err := session.ValidateAllow(string(code)); err != nil {
			return wrong(err, again)
		}
	}
	return nil
}
