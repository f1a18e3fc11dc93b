package credentialissuer

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pinniped-toolkit/pinniped/internal/issuedcert"
	"github.com/pinniped-toolkit/pinniped/internal/servingcert"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// errNotLeader is returned where something has to be written first and another replica will do it. The watch wakes
// us then.
var errNotLeader = errors.New("waiting for the leading replica to make it")

// ownSecret is a Secret whose content the agent issues itself.
type ownSecret struct {
	name    types.NamespacedName
	kind    corev1.SecretType
	inspect func(*corev1.Secret) *issuedcert.State
	// made and restored are what is logged when the Secret was written.
	made, restored string
}

func (r *Reconciler) generatedCA() ownSecret {
	return ownSecret{
		name: r.local(r.Names.CASecret), kind: corev1.SecretTypeOpaque,
		inspect: func(secret *corev1.Secret) *issuedcert.State {
			return issuedcert.Inspect(servingcert.GeneratedCA(), secret, r.Clock.Now())
		},
		made: "Generated serving CA", restored: "Restored serving CA",
	}
}

func (r *Reconciler) generatedServing(ca *certs.CA, names certs.SANs) ownSecret {
	return ownSecret{
		name: r.local(r.Names.TLSSecret), kind: corev1.SecretTypeTLS,
		inspect: func(secret *corev1.Secret) *issuedcert.State {
			return issuedcert.InspectUnder(ca, servingcert.GeneratedServing(names), secret, r.Clock.Now())
		},
		made: "Generated serving certificate",
	}
}

func (r *Reconciler) ownSigner() ownSecret {
	return ownSecret{
		name: r.local(r.Names.SignerSecret), kind: corev1.SecretTypeOpaque,
		inspect: func(secret *corev1.Secret) *issuedcert.State {
			return issuedcert.Inspect(signerPolicy(), secret, r.Clock.Now())
		},
		made: "Wrote signer CA for client certificates", restored: "Restored signer CA for client certificates",
	}
}

func (r *Reconciler) local(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: r.Namespace, Name: name}
}

// inspect reads a Secret of the agent's own. The watch may not have shown the agent's last write yet. So the leader
// asks the API server before it writes, and does not do the same thing twice.
func (r *Reconciler) inspect(ctx context.Context, own ownSecret) (*corev1.Secret, *issuedcert.State, error) {
	secret, err := r.secretOrNil(ctx, own.name)
	if err != nil {
		return nil, nil, err
	}
	state := own.inspect(secret)
	if !r.IsLeader() || state.Verdict() == nil {
		return secret, state, nil
	}
	live := &corev1.Secret{}
	switch err := r.Live.Get(ctx, own.name, live); {
	case err == nil:
		return live, own.inspect(live), nil
	case apierrors.IsNotFound(err):
		return nil, own.inspect(nil), nil
	default:
		return secret, state, nil // the write fails if the Secret has changed since it was read
	}
}

// maintain returns what a Secret of the agent's own holds. The leader first writes what is missing or has to be
// replaced. seen is what the Secret held when there was last nothing wrong with it, or nil. What is only old is
// used until its successor is written.
func (r *Reconciler) maintain(ctx context.Context, own ownSecret, seen *issuedcert.State) (*issuedcert.State, error) {
	secret, state, err := r.inspect(ctx, own)
	if err != nil {
		return nil, err
	}
	verdict := state.Verdict()
	if verdict == nil {
		return state, nil
	}
	next, err := r.replace(ctx, own, state, verdict, secret, seen)
	switch {
	case err == nil:
		return next, nil
	case verdict.Only(issuedcert.Expiring):
		return state, nil
	}
	return nil, err
}

func (r *Reconciler) replace(ctx context.Context, own ownSecret, state *issuedcert.State, verdict *issuedcert.Verdict,
	secret *corev1.Secret, seen *issuedcert.State,
) (*issuedcert.State, error) {
	if !r.IsLeader() {
		return nil, errNotLeader
	}
	next, err := state.Repair(verdict, seen)
	if err != nil {
		return nil, err
	}
	return next, r.writeOwn(ctx, own, next, verdict, secret, next.SameCA(seen))
}

func (r *Reconciler) writeOwn(ctx context.Context, own ownSecret, next *issuedcert.State, verdict *issuedcert.Verdict,
	secret *corev1.Secret, restored bool,
) error {
	if _, err := r.writeSecret(ctx, own.name, own.kind, next.Data(), secret); err != nil {
		return err
	}
	message := own.made
	if restored {
		message = own.restored
	}
	log.FromContext(ctx).Info(message, "secret", own.name, "part", verdict.Part, "reason", verdict.Reason,
		"cause", verdict.Message, "notAfter", next.NotAfter())
	return nil
}

// writeSecret writes a Secret of the agent's own, unless it has changed since it was read.
func (r *Reconciler) writeSecret(ctx context.Context, name types.NamespacedName, kind corev1.SecretType,
	data map[string][]byte, read *corev1.Secret,
) (*corev1.Secret, error) {
	target := issuedcert.Target{Name: name, Type: kind, Labels: r.Labels, FieldManager: FieldManager}
	return issuedcert.Write(ctx, r.SecretWriter, target, data, read)
}
