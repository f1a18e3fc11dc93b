package credentialissuer

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pinniped-toolkit/pinniped/internal/issuedcert"
	"github.com/pinniped-toolkit/pinniped/internal/logs"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// step is a group of dependent actions. The first failure ends the step.
type step int

const (
	stepSigner step = iota
	stepRenewSigner
	stepLoad
	stepRenewCertificate
	stepSwitch // proxy on or off; if it fails, nothing else is done
	stepTidy   // only done if the right certificate is in service
	stepLabels // a failure is retried at the next reconcile
)

// action is one thing to do. String is for tests.
type action interface {
	fmt.Stringer
	step() step
	do(ctx context.Context, r *Reconciler) error
}

// apply performs the actions in order and returns the error that ended each failed step.
func (r *Reconciler) apply(ctx context.Context, d decision) map[step]error {
	failed := map[step]error{}
	for _, a := range d.actions {
		at := a.step()
		if failed[at] != nil || failed[stepSwitch] != nil || at == stepTidy && failed[stepLoad] != nil {
			continue
		}
		if err := a.do(ctx, r); err != nil {
			failed[at] = err
		}
	}
	if err := failed[stepLabels]; err != nil {
		logs.Warn(ctx, "Failed to change the labels of a Secret", "problem", err.Error())
	}
	for _, at := range []step{stepRenewSigner, stepRenewCertificate} {
		if err := failed[at]; err != nil {
			logs.Warn(ctx, "Failed to renew a certificate that is still valid", "problem", err.Error())
		}
	}
	return failed
}

// writeIssued writes a Secret with content that the agent issued.
type writeIssued struct {
	at       step
	issued   issuedSecret
	next     *issuedcert.State
	read     *corev1.Secret
	verdict  issuedcert.Verdict
	restored bool
}

func (a writeIssued) step() step { return a.at }

func (a writeIssued) String() string {
	verb := "write"
	if a.restored {
		verb = "restore"
	}
	return fmt.Sprintf("%s %s (%s %s)", verb, a.issued.name, a.verdict.Part, a.verdict.Reason)
}

func (a writeIssued) do(ctx context.Context, r *Reconciler) error {
	name := r.local(a.issued.name)
	if err := r.writeSecret(ctx, name, a.issued.kind, a.next.Data(), a.read); err != nil {
		return a.issued.failed(err)
	}
	r.keepState(a.issued.name, a.next)
	message := a.issued.made
	if a.restored {
		message = a.issued.restored
	}
	log.FromContext(ctx).Info(message, "secret", name, "part", a.verdict.Part, "reason", a.verdict.Reason,
		"cause", a.verdict.Message, "notAfter", a.next.NotAfter())
	return nil
}

// keepState stores the state of a Secret in memory, to restore the Secret if it is damaged.
type keepState struct {
	at    step
	name  string
	state *issuedcert.State
}

func (a keepState) step() step     { return a.at }
func (a keepState) String() string { return "keep " + a.name }

func (a keepState) do(_ context.Context, r *Reconciler) error {
	r.keepState(a.name, a.state)
	return nil
}

func (r *Reconciler) keepState(name string, state *issuedcert.State) {
	if r.known == nil {
		r.known = map[string]*issuedcert.State{}
	}
	r.known[name] = state
}

// loadSigner makes use the CA that signs client certificates. Those signed by the CAs in accepted are accepted as well.
type loadSigner struct {
	at       step
	state    *issuedcert.State
	use      *certs.CA
	accepted []byte
}

func (a loadSigner) step() step     { return a.at }
func (a loadSigner) String() string { return "load signer" }

func (a loadSigner) do(ctx context.Context, r *Reconciler) error {
	r.signing = a.use
	if r.Signer.Load(a.use, a.accepted) {
		log.FromContext(ctx).Info("Loaded signer CA for client certificates", "secret", r.local(r.Names.SignerSecret),
			"notAfter", a.state.CA.Certificate().NotAfter)
	}
	return nil
}

// serve puts a certificate into service.
type serve struct {
	at          step
	certificate *serving.Certificate
	keptIn      string // the Secret with the backup, if certificate is from there

	// instead is the delegated certificate that it replaces because its permission was withdrawn, or nil; cause says
	// why.
	instead *serving.Certificate
	cause   *serving.Refusal
}

func (a serve) step() step { return a.at }

func (a serve) String() string {
	text := fmt.Sprintf("serve %s %s", a.certificate.Source, a.certificate.Secret)
	if a.keptIn != "" {
		text += " kept in " + a.keptIn
	}
	if a.instead != nil {
		text += " instead of " + a.instead.Secret.String()
	}
	return text
}

func (a serve) do(ctx context.Context, r *Reconciler) error {
	logger := log.FromContext(ctx)
	if a.keptIn != "" {
		logs.Warn(
			ctx,
			"Restored the last known good certificate",
			"secret",
			a.certificate.Secret,
			"keptIn",
			r.local(a.keptIn),
		)
	}
	if before := r.Holder.Serve(a.certificate); !sameCertificate(before, a.certificate) {
		logger.Info("Put serving certificate into service", "source", a.certificate.Source, "secret", a.certificate.Secret,
			"sha256", a.certificate.SHA256(), "notAfter", a.certificate.Certificate.Leaf.NotAfter)
	}
	if a.instead != nil {
		logs.Warn(ctx, "Stopped serving a certificate that the agent may no longer use", "secret", a.instead.Secret,
			"sha256", a.instead.SHA256(), "cause", a.cause.Finding.Message)
	}
	return nil
}

// reportUnusableCopy logs why the last known good certificate is not served.
type reportUnusableCopy struct {
	name types.NamespacedName
	err  error
}

func (reportUnusableCopy) step() step { return stepLoad }
func (reportUnusableCopy) String() string {
	return "report that the last known good certificate cannot be used"
}

func (a reportUnusableCopy) do(ctx context.Context, _ *Reconciler) error {
	logs.Warn(ctx, "Failed to use the last known good certificate", "secret", a.name, "problem", a.err.Error())
	return nil
}

// startProxy makes the proxy listen, if there is a certificate to serve.
type startProxy struct{}

func (startProxy) step() step     { return stepSwitch }
func (startProxy) String() string { return "start proxy" }

func (startProxy) do(ctx context.Context, r *Reconciler) error {
	if r.Holder.Current() == nil {
		return nil // loading it failed, or its permission was just withdrawn
	}
	if err := r.Proxy.Start(ctx); err != nil {
		return coded(configv1alpha1.CodeProxyNotStarted, fmt.Errorf("starting the impersonation proxy: %w", err))
	}
	return nil
}

// stopProxy stops the proxy and unloads its certificate and the signer, so that no client certificate is issued that
// nothing accepts.
type stopProxy struct{}

func (stopProxy) step() step     { return stepSwitch }
func (stopProxy) String() string { return "stop proxy" }

func (stopProxy) do(ctx context.Context, r *Reconciler) error {
	if err := r.Proxy.Stop(ctx); err != nil {
		return coded(configv1alpha1.CodeProxyNotStopped, fmt.Errorf("stopping the impersonation proxy: %w", err))
	}
	r.Holder.Withdraw()
	r.Signer.Clear()
	r.signing = nil
	return nil
}

// writeCopy backs up the external certificate in service.
type writeCopy struct {
	name   types.NamespacedName
	data   map[string][]byte
	read   *corev1.Secret
	sha256 string
}

func (writeCopy) step() step       { return stepTidy }
func (a writeCopy) String() string { return "copy to " + a.name.Name }

func (a writeCopy) do(ctx context.Context, r *Reconciler) error {
	err := r.writeSecret(ctx, a.name, corev1.SecretTypeTLS, a.data, a.read)
	switch {
	case issuedcert.ChangedMeanwhile(err):
		return nil // just written; the watch triggers a reconcile
	case err != nil:
		return coded(configv1alpha1.CodeLastKnownGoodNotKept, fmt.Errorf("backing up the certificate in service: %w", err))
	}
	log.FromContext(ctx).Info("Backed up the certificate in service", "secret", a.name, "sha256", a.sha256)
	return nil
}

// removeSecret deletes a Secret of the agent, unless it has changed since it was read.
type removeSecret struct{ secret *corev1.Secret }

func (removeSecret) step() step       { return stepTidy }
func (a removeSecret) String() string { return "remove " + a.secret.Name }

func (a removeSecret) do(ctx context.Context, r *Reconciler) error {
	return r.remove(ctx, "Secret", &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: a.secret.Namespace, Name: a.secret.Name, UID: a.secret.UID, ResourceVersion: a.secret.ResourceVersion,
	}})
}

// relabel sets the configured labels on Secrets of the agent and removes Deployments from their owners.
type relabel struct{ secrets []*corev1.Secret }

func (relabel) step() step { return stepLabels }

func (a relabel) String() string {
	text := "relabel"
	for _, secret := range a.secrets {
		text += " " + secret.Name
	}
	return text
}

func (a relabel) do(ctx context.Context, r *Reconciler) error {
	var all error
	for _, secret := range a.secrets {
		target := issuedcert.Target{Name: r.local(secret.Name), Labels: r.Labels, FieldManager: FieldManager}
		switch err := issuedcert.WriteMetadata(ctx, r.SecretWriter, target, secret); {
		case issuedcert.ChangedMeanwhile(err): // the watch triggers a reconcile
		case err != nil:
			all = errors.Join(all, err)
		default:
			log.FromContext(ctx).Info("Corrected the labels and owners of a Secret", "secret", target.Name)
		}
	}
	return all
}

// writeSecret writes a Secret of the agent, unless it has changed since it was read.
func (r *Reconciler) writeSecret(ctx context.Context, name types.NamespacedName, kind corev1.SecretType,
	data map[string][]byte, read *corev1.Secret,
) error {
	target := issuedcert.Target{Name: name, Type: kind, Labels: r.Labels, FieldManager: FieldManager}
	_, err := issuedcert.Write(ctx, r.SecretWriter, target, data, read)
	return err
}
