// Package kubeversion lists the features that depend on the version of Kubernetes, and what happens in versions without
// them.
//
// Users only see it for an unsupported version (TooOld). Otherwise pinniped detects features, because providers enable
// and disable them: the list is for readers, tests and the local cluster.
package kubeversion

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// Oldest is the oldest supported version.
const Oldest = "1.29"

// Feature is a feature that depends on the version.
type Feature struct {
	// Name is the name in documents.
	Name string
	// Since is the first version that has it by default, such as 1.30.
	Since string
	// Before is what happens in older versions.
	Before string
}

// In reports whether a version has the feature.
func (f Feature) In(v *version.Version) bool { return v.AtLeast(version.MustParseGeneric(f.Since)) }

// The features that code and tests check.
var (
	UIDHeaders               = Feature{"UIDs of users at aggregated APIs", "1.32", "`pinniped whoami` shows no UID"}
	ConstrainedImpersonation = Feature{
		"constrained impersonation", "1.36", "users' service accounts impersonate without constraints",
	}
)

// Features returns all features, the oldest first.
func Features() []Feature {
	return []Feature{
		{"impersonation with a UID", "1.22", "users lose their UIDs"},
		{"CEL rules of CRDs", "1.25", "the agent rejects an invalid spec, not the API server"},
		{"SelfSubjectReview", "1.28", "the agent does not know its ServiceAccount"},
		{"`flowcontrol.apiserver.k8s.io/v1`", "1.29", "the manifests need one more component"},
		{"ValidatingAdmissionPolicy", "1.30", "the manifests need a patch, the chart does not"},
		{"`exec` and `attach` over websockets", "1.30", "clients use SPDY"},
		{"`port-forward` over websockets", "1.31", "clients use SPDY"},
		{"CEL's `isIP` in CRDs, which Gateway API uses", "1.31", "the API server rejects Gateway API's CRDs"},
		UIDHeaders,
		{"`credential-id` of client certificates", "1.32", "audit logs do not name the certificate"},
		{"anonymous requests to some paths only", "1.32", "anonymous requests are allowed for all paths or for none"},
		{
			"ClusterTrustBundle (feature gate; by default since 1.37)",
			"1.33",
			"a CA bundle in a ClusterTrustBundle gives the finding `BundleNotFound`",
		},
		ConstrainedImpersonation,
	}
}

// TooOld returns why the API server's version, as in /version, is not supported, or "" when it is.
func TooOld(gitVersion string) string {
	v, err := version.ParseGeneric(gitVersion)
	oldest := version.MustParseGeneric(Oldest)
	if err != nil || v.AtLeast(oldest) {
		return ""
	}
	var missing []string
	for _, f := range Features() {
		if since := version.MustParseGeneric(f.Since); !f.In(v) && oldest.AtLeast(since) {
			missing = append(missing, fmt.Sprintf("%s (since %s): %s", strings.Trim(f.Name, "`"), f.Since, f.Before))
		}
	}
	return fmt.Sprintf("Kubernetes %s is not supported, the oldest supported version is %s; without %s",
		strings.TrimPrefix(gitVersion, "v"), Oldest, strings.Join(missing, "; "))
}
