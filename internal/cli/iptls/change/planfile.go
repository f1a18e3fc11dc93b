package change

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// The type of the file that a dry run prints and `ip-tls apply` reads. Another format gets another version.
const (
	planAPIVersion = "ip-tls.pinniped.dev/v1alpha1"
	planKind       = "Plan"
)

// maxPlan bounds the file that is read: two CA bundles, as text and as base64, and what was found.
const maxPlan = 2 << 20

// Plan is the part of a dry run's result that `ip-tls apply` reads: what is to be done, and the objects for which it
// was planned.
type Plan struct {
	// Command is the command whose dry run it is: "set", "unset" or "undo".
	Command string    `json:"command"`
	At      time.Time `json:"at"`
	// Namespace is the agent's.
	Namespace        string        `json:"namespace"`
	CredentialIssuer PlannedObject `json:"credentialIssuer"`
	// Secret holds the certificate; nil when the agent is to generate one.
	Secret *PlannedSecret `json:"secret,omitempty"`
	Wanted plan.Target    `json:"wanted"`
	// CABundle is what clients will be given, PEM; empty for their system roots, or for a CA that the agent makes.
	CABundle string `json:"caBundle,omitempty"`
	// Allow are the codes of errors that were let through.
	Allow []certs.Code `json:"allow,omitempty"`
}

// PlannedObject is one object as it was when the plan was made.
type PlannedObject struct {
	Name            string `json:"name"`
	UID             string `json:"uid"`
	ResourceVersion string `json:"resourceVersion"`
	Generation      int64  `json:"generation,omitempty"`
}

// PlannedSecret is a Secret as it was when the plan was made. No hash covers its key.
type PlannedSecret struct {
	PlannedObject `json:",inline"`
	// SHA256 is the fingerprint of the serving certificate.
	SHA256 string `json:"sha256"`
	// ContentSHA256 covers all of tls.crt and ca.crt.
	ContentSHA256 string `json:"contentSHA256"`
}

func newPlan(command string, st *plan.Snapshot, p *plan.Plan) *Plan {
	planned := &Plan{
		Command: command, At: st.Now.UTC().Truncate(time.Second), Namespace: p.Request.Namespace,
		CredentialIssuer: plannedIssuer(st.Issuer), Wanted: plan.TargetOf(&p.Wanted), CABundle: string(p.Bundle),
		Allow: p.Request.Allow,
	}
	if p.Wanted.TLS != nil && st.Secret != nil {
		planned.Secret = plannedSecret(st.Secret, p.Report.SHA256)
	}
	return planned
}

func plannedIssuer(issuer *configv1alpha1.CredentialIssuer) PlannedObject {
	return PlannedObject{
		Name: issuer.Name, UID: string(issuer.UID), ResourceVersion: issuer.ResourceVersion,
		Generation: issuer.Generation,
	}
}

// wantedSecret returns the Secret that the plan's tls block names; it has one.
func (p *Plan) wantedSecret() types.NamespacedName {
	name, _ := delegation.SecretName(p.Wanted.TLS.SecretName, p.Namespace) // what cannot be read is no Secret's name
	return name
}

func plannedSecret(secret *corev1.Secret, fingerprint string) *PlannedSecret {
	return &PlannedSecret{
		PlannedObject: PlannedObject{
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
	var kind struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := yaml.Unmarshal(content, &kind); err != nil {
		return nil, wrong(err, how)
	}
	if kind.Kind != planKind {
		return nil, wrong(fmt.Errorf("it is of kind %q, not %q", kind.Kind, planKind), how)
	}
	if kind.APIVersion != planAPIVersion {
		return nil, wrong(fmt.Errorf("it has apiVersion %q, and this program knows %q", kind.APIVersion,
			planAPIVersion),
			"make and apply a plan with the same version of pinniped")
	}
	var file Result
	if err := yaml.UnmarshalStrict(content, &file); err != nil {
		return nil, wrong(err, "a plan is not meant to be edited; make a new one")
	}
	return &file, file.check(wrong)
}

// check says whether the file is a plan that can be applied at all.
func (r *Result) check(wrong func(error, string) error) error {
	const again = "make a new one"
	switch p := r.Plan; {
	case p == nil:
		return wrong(fmt.Errorf("it has no plan"), again)
	case r.Action == ActionRefused || !r.Certificate.OK():
		reason := "its dry run was refused"
		if first, found := r.Certificate.First(); found {
			reason += ": " + first.String()
		}
		return ui.WithExitCode(wrong(fmt.Errorf("%s", reason), "mend the cause and plan again"), ui.ExitRefused)
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
