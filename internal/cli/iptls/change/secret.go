package change

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// keyPair is a certificate and its key from files.
type keyPair struct{ cert, key []byte }

// secretChange is a Secret before and after it was written. before is nil if there was none.
type secretChange struct{ before, after *corev1.Secret }

// intended returns the Secret to write. existing is the current one, or nil.
func (k *keyPair) intended(existing *corev1.Secret, namespace, name string, systemRoots bool) *corev1.Secret {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Type:       corev1.SecretTypeTLS,
	}
	if existing != nil {
		secret = existing.DeepCopy()
	}
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey] = k.cert, k.key
	if systemRoots && len(secret.Data[plan.CABundleKey]) > 0 {
		secret.Data[plan.CABundleKey] = []byte{} // server-side apply cannot remove fields of other managers
	}
	return secret
}

// secretKeys are the keys of a Secret that the commands write.
var secretKeys = []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey, plan.CABundleKey}

// writtenKeys returns the keys of a Secret that differ from those in wanted. before may be nil.
func writtenKeys(before, wanted *corev1.Secret) []string {
	before = cmp.Or(before, &corev1.Secret{})
	return slices.DeleteFunc(slices.Clone(secretKeys), func(key string) bool {
		return bytes.Equal(before.Data[key], wanted.Data[key])
	})
}

// changesOfSecret lists the changes in the Secret, without key material.
func changesOfSecret(before, wanted *corev1.Secret) []plan.FieldChange {
	describe := func(secret *corev1.Secret, key string) string {
		switch {
		case secret == nil || len(secret.Data[key]) == 0:
			return ""
		case key == corev1.TLSPrivateKeyKey:
			return "(not shown)"
		default:
			return serving.Describe(secret.Data[key])
		}
	}
	var changes []plan.FieldChange
	for _, key := range writtenKeys(before, wanted) {
		changes = append(changes, plan.FieldChange{
			Field: result.SecretField + wanted.Name + " " + key, From: describe(before, key), To: describe(wanted, key),
		})
	}
	return changes
}

// mayWrite returns an error if a Secret must not be overwritten. overwrite is --overwrite-secret.
func mayWrite(secret *corev1.Secret, overwrite bool) error {
	if secret == nil {
		return nil
	}
	refuse := func(hint, format string, args ...any) error {
		text := fmt.Sprintf("Secret %q is not overwritten: ", secret.Namespace+"/"+secret.Name) + fmt.Sprintf(format, args...)
		return ui.WithExitCode(ui.WithHint(errors.New(text), "%s", hint), ui.ExitRefused)
	}
	const another = "write the certificate into another Secret: --secret NAME"
	switch {
	case secret.DeletionTimestamp != nil:
		return refuse("run the command again once the Secret is gone", "it is being deleted")
	case secret.Immutable != nil && *secret.Immutable:
		return refuse(another, "it is marked immutable")
	case secret.Type != corev1.SecretTypeTLS && secret.Type != corev1.SecretTypeOpaque:
		return refuse(another, "its type %q cannot be changed to %s", secret.Type, corev1.SecretTypeTLS)
	case len(secret.Data["ca.key"]) > 0 || slices.ContainsFunc(secret.ManagedFields, ofAgent):
		return refuse(another, "it belongs to the agent")
	case overwrite:
		return nil
	}
	if owner := session.IssuedBy(secret); owner != nil {
		return refuse(another+"; or overwrite this one anyway with --overwrite-secret",
			"%s, which would restore its own certificate", owner)
	}
	for _, entry := range secret.ManagedFields {
		if entry.Operation == metav1.ManagedFieldsOperationApply && entry.Manager != plan.FieldManager &&
			entry.Manager != "kubectl" && ownsData(entry) {
			return refuse(another+"; or, if nothing applies this one anymore, overwrite it with --overwrite-secret",
				"%q applies this Secret and would restore its own certificate", entry.Manager)
		}
	}
	return nil
}

// ofAgent reports whether the agent, by its field manager, has written a certificate.
func ofAgent(entry metav1.ManagedFieldsEntry) bool {
	return entry.Manager == "pinniped-agent" && ownsData(entry)
}

func ownsData(entry metav1.ManagedFieldsEntry) bool {
	return plan.EntryOwns(entry, "data", corev1.TLSCertKey) || plan.EntryOwns(entry, "data", corev1.TLSPrivateKeyKey)
}

// secretFields returns the fields to apply: the type, and the keys with their data.
func secretFields(secret *corev1.Secret, keys []string, resourceVersion string) map[string]any {
	data := map[string]any{}
	for _, key := range keys {
		data[key] = secret.Data[key] // encoded as base64
	}
	metadata := map[string]any{}
	if resourceVersion != "" {
		metadata["resourceVersion"] = resourceVersion
	}
	return map[string]any{"metadata": metadata, "type": string(secret.Type), "data": data}
}

// writeSecret replaces before by wanted. It returns ErrConflict if the Secret in the cluster is no longer before.
func writeSecret(ctx context.Context, cluster session.Cluster, before, wanted *corev1.Secret,
	dryRun bool,
) (*corev1.Secret, error) {
	// A new Secret has no resourceVersion. Without Force, a Secret that was created concurrently is a conflict.
	opts := discovery.ApplyOptions{FieldManager: plan.FieldManager, Force: before != nil, DryRun: dryRun}
	before = cmp.Or(before, &corev1.Secret{})
	var keys []string
	for _, key := range secretKeys {
		if _, has := wanted.Data[key]; has && (key != plan.CABundleKey || !bytes.Equal(before.Data[key], wanted.Data[key])) {
			keys = append(keys, key)
		}
	}
	fields := secretFields(wanted, keys, before.ResourceVersion)
	return cluster.ApplySecret(ctx, wanted.Namespace, wanted.Name, fields, opts)
}

// undo restores the Secret, unless it has been changed again.
func (c *secretChange) undo(ctx context.Context, cluster session.Cluster, progress *ui.Progress) error {
	fail := func(err error) error {
		return fmt.Errorf("restoring Secret %q: %w", c.after.Namespace+"/"+c.after.Name, err)
	}
	for attempt := 1; ; attempt++ {
		current, err := cluster.Secret(ctx, c.after.Namespace, c.after.Name)
		if err != nil {
			return fail(err)
		}
		if len(writtenKeys(current, c.after)) > 0 {
			return fail(errors.New("it was changed in the meantime, so it stays as it is"))
		}
		done := "Restored"
		if c.before == nil {
			done, err = "Removed", cluster.DeleteSecret(ctx, current)
		} else {
			_, err = writeSecret(ctx, cluster, current, c.before, false)
		}
		switch {
		case err == nil:
			progress.Done("%s Secret %q", done, c.after.Name)
			return nil
		case !errors.Is(err, discovery.ErrConflict) || attempt == Attempts:
			return fail(err)
		}
	}
}

// refuseFiles rejects files that cannot be used in any cluster: unreadable, or not matching. It does not contact the
// cluster, so that these errors are reported even if the cluster does not respond. It returns nil if there are none.
func (o *SetOptions) refuseFiles() error {
	if o.files == nil {
		return nil
	}
	in := certs.Input{
		CertPEM: o.files.cert, KeyPEM: o.files.key, Bundle: o.request.Bundle, Now: o.Session.Now(),
		Sources: o.request.Sources, Allow: o.request.Allow,
	}
	if o.request.Endpoint != nil {
		in.Endpoint = *o.request.Endpoint
	}
	report := certs.Check(in)
	if !slices.ContainsFunc(report.Errors(), func(f certs.Finding) bool {
		return slices.Contains(ofFilesAlone, f.Code)
	}) {
		return nil
	}
	if !o.request.BundleGiven && !o.request.SystemRoots { // the CA bundle is in the cluster
		report.Findings = slices.DeleteFunc(report.Findings, func(f certs.Finding) bool {
			return f.Code == certs.BundleDoesNotVerify || f.Code == certs.ChainIncomplete || f.Code == certs.BundleEmpty
		})
	}
	Say(o.Session.Progress, nil, &plan.Plan{Report: report})
	return o.change().print(&Result{
		Outcome: result.OutcomeRefused, Certificate: report, Changes: []plan.FieldChange{},
		CABundle: result.BundleOf(o.request.Bundle),
	}, plan.Refusal(report, plan.NothingChanged))
}

// ofFilesAlone are the errors that depend only on the files, and not on the time or the cluster.
var ofFilesAlone = []certs.Code{
	certs.TooLarge, certs.NotACertificate, certs.BadSerial, certs.KeyMismatch, certs.KeyEncrypted, certs.KeyUnreadable,
	certs.KeyIsCAKey, certs.ChainOrder,
}
