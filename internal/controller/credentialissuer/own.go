package credentialissuer

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// errNotLeader is returned if the leader has to write something first. The watch then triggers a reconcile.
var errNotLeader = errors.New("waiting for the leading replica to create it")

// issuedSecret describes a Secret with content that the agent issues.
type issuedSecret struct {
	name string
	kind corev1.SecretType
	// code and doing describe the finding if the content cannot be prepared.
	code, doing string
	// made and restored are the log messages after a write.
	made, restored string
}

func (n Names) generatedCA() issuedSecret {
	return issuedSecret{
		name: n.CASecret, kind: corev1.SecretTypeOpaque,
		code: configv1alpha1.CodeGeneratedCertificateUnavailable, doing: "preparing the generated serving CA",
		made: "Generated serving CA", restored: "Restored serving CA",
	}
}

func (n Names) generatedServing() issuedSecret {
	return issuedSecret{
		name: n.TLSSecret, kind: corev1.SecretTypeTLS,
		code: configv1alpha1.CodeGeneratedCertificateUnavailable, doing: "preparing the generated serving certificate",
		made: "Generated serving certificate",
	}
}

func (n Names) signer() issuedSecret {
	return issuedSecret{
		name: n.SignerSecret, kind: corev1.SecretTypeOpaque,
		code: configv1alpha1.CodeSignerUnavailable, doing: "could not load the impersonator's credential signing secret",
		made: "Wrote signer CA for client certificates", restored: "Restored signer CA for client certificates",
	}
}

// failed says which preparation failed with err. It returns nil for a nil error.
func (i issuedSecret) failed(err error) error {
	if err == nil {
		return nil
	}
	return coded(i.code, fmt.Errorf("%s: %w", i.doing, err))
}

func (r *Reconciler) local(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: r.Namespace, Name: name}
}

// sameCertificate reports whether replacing a by b changes nothing for clients or in the status.
func sameCertificate(a, b *serving.Certificate) bool {
	if a == nil || b == nil {
		return a == b
	}
	if a.Source != b.Source || a.Secret != b.Secret || string(a.Bundle) != string(b.Bundle) ||
		string(a.Own) != string(b.Own) || a.Fallback != b.Fallback ||
		len(a.Certificate.Certificate) != len(b.Certificate.Certificate) {
		return false
	}
	for i := range a.Certificate.Certificate {
		if string(a.Certificate.Certificate[i]) != string(b.Certificate.Certificate[i]) {
			return false
		}
	}
	return true
}
