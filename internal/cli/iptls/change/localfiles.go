package change

import (
	"slices"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

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
	if !slices.ContainsFunc(report.Errors(), ofFilesAlone) {
		return nil
	}
	report.Findings = slices.DeleteFunc(report.Findings, func(f certs.Finding) bool { return !o.knownLocally(f) })
	Say(o.Session.Progress, nil, &plan.Plan{Report: report})
	c := Change{Session: o.Session, Flags: o.Flags, Verb: o}
	return c.print(&Result{
		Outcome: result.OutcomeRefused, Certificate: report, Changes: []plan.FieldChange{},
		CABundle: result.BundleOf(o.request.Bundle),
	}, plan.Refusal(report, plan.NothingChanged))
}

// ofFilesAlone reports whether an error depends only on the files, and not on the time or the cluster.
func ofFilesAlone(f certs.Finding) bool {
	switch f.Code { //nolint:exhaustive // the others depend on the cluster or its clock
	case certs.TooLarge,
		certs.NotACertificate,
		certs.BadSerial,
		certs.KeyMismatch,
		certs.KeyEncrypted,
		certs.KeyUnreadable,
		certs.KeyIsCAKey,
		certs.ChainOrder:
		return true
	}
	return false
}

// knownLocally reports whether a finding does not depend on the cluster. Without --ca-bundle and --system-roots, the CA
// bundle is in the cluster.
func (o *SetOptions) knownLocally(f certs.Finding) bool {
	switch f.Code { //nolint:exhaustive // the others are about the files
	case certs.BundleDoesNotVerify, certs.ChainIncomplete, certs.BundleEmpty:
		return o.request.BundleGiven || o.request.SystemRoots
	}
	return true
}
