package change

import (
	"slices"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// refuseFiles refuses files that no cluster can make good: they cannot be read, or do not belong together. It asks no
// cluster, so that a mistake in them is named also where the cluster is away. It returns nil when the cluster is to be
// asked.
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

// ofFilesAlone says whether an error is about the files themselves, and neither about the time nor about the cluster.
func ofFilesAlone(f certs.Finding) bool {
	switch f.Code { //nolint:exhaustive // all others need the cluster, or its clock
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

// knownLocally says whether a finding holds whatever the cluster says. Without --ca-bundle and --system-roots, the
// cluster has the CA bundle.
func (o *SetOptions) knownLocally(f certs.Finding) bool {
	switch f.Code { //nolint:exhaustive // all others are about the files
	case certs.BundleDoesNotVerify, certs.ChainIncomplete, certs.BundleEmpty:
		return o.request.BundleGiven || o.request.SystemRoots
	}
	return true
}
