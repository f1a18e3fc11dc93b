package agent

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/pinniped-toolkit/pinniped/internal/logs"
)

// retiredKey is a key of the last release, accepted for one more: the next one is to refuse it. Then this file goes.
type retiredKey struct {
	key, flag string
	instead   string // what holds now
	honored   bool   // it still has its effect, because an object of that name may exist
}

const (
	insteadOfLimits   = "what clients may hold follows from the memory limit of the pod"
	insteadOfRotation = "the file is rotated at 100 MiB and 8 old ones are kept; audit.logPath \"-\" leaves that to others"
	insteadOfNames    = "in effect in this release for the last time; then the name follows from appName"
)

func retiredKeys() []retiredKey {
	all := []retiredKey{
		{"accessReviews.denyTTL", "access-reviews-deny-ttl", "it is 500ms", false},
		{"selfCheckInterval", "self-check-interval", "it is 10m", false},
		{"audit.logMaxSize", "audit-log-maxsize", insteadOfRotation, false},
		{"audit.logMaxBackup", "audit-log-maxbackup", insteadOfRotation, false},
		{"audit.logMaxAge", "audit-log-maxage", insteadOfRotation, false},
		{"names.impersonationLastGoodSecret", "name-last-good-secret", insteadOfNames, true},
		{"names.credentialIssuerRecordSecret", "name-credential-issuer-record-secret", insteadOfNames, true},
		{"names.handedOutConfigMap", "name-handed-out-config-map", insteadOfNames, true},
		{"names.leaderElectionLease", "name-leader-election-lease", insteadOfNames, true},
		{"names.userAccountsServiceAccount", "name-user-accounts-service-account", insteadOfNames, true},
		{"userAccountsNamespace", "user-accounts-namespace", insteadOfNames, true},
	}
	for _, work := range []string{
		"accessReviews", "tokenReviews", "logins", "perConnection",
		"requests", "longAnswers", "requestsPerUser", "longAnswersPerUser",
	} {
		all = append(all, retiredKey{"work." + work, hyphenated("work." + work), insteadOfLimits, false})
	}
	for _, of := range []string{"connections", "requests", "streams", "bytes", "resets", "reviews", "unread"} {
		for _, share := range []string{"total", "perAddress", "perUser", "unauthenticated"} {
			if of == "resets" && share == "total" {
				continue // there never was one
			}
			name := of + "." + share
			all = append(all, retiredKey{"limits." + name, hyphenated("limit." + name), insteadOfLimits, false})
		}
	}
	return all
}

// RetiredKeys returns the keys of the last release that are accepted for one more, and for each what holds now.
func RetiredKeys() map[string]string {
	keys := map[string]string{}
	for _, retired := range retiredKeys() {
		keys[retired.key] = retired.instead
	}
	return keys
}

// hyphenated returns the flag for a key.
func hyphenated(key string) string {
	name := strings.TrimPrefix(envName(key), envPrefix)
	return strings.ReplaceAll(strings.ToLower(name), "_", "-")
}

func addRetiredFlags(flags *pflag.FlagSet) {
	for _, retired := range retiredKeys() {
		flags.String(retired.flag, "", retired.instead)
		flags.Lookup(retired.flag).Hidden = true
	}
}

// findRetired returns what is set of the last release, as it is written where it is set, by what holds now. inFile are
// the keys of the file, in lower case.
func findRetired(inFile []string, flags *pflag.FlagSet) map[string][]string {
	found := map[string][]string{}
	for _, retired := range retiredKeys() {
		if slices.Contains(inFile, strings.ToLower(retired.key)) {
			found[retired.instead] = append(found[retired.instead], retired.key)
		}
		if os.Getenv(envName(retired.key)) != "" {
			found[retired.instead] = append(found[retired.instead], envName(retired.key))
		}
		if flag := flags.Lookup(retired.flag); flag != nil && flag.Changed {
			found[retired.instead] = append(found[retired.instead], "--"+retired.flag)
		}
	}
	return found
}

// warnOfRetired tells of all that findRetired has found, in one line.
func (c *Config) warnOfRetired(ctx context.Context) {
	var settings []string
	for instead, names := range c.Retired {
		settings = append(settings, fmt.Sprintf("%s: no longer configurable; %s", strings.Join(names, ", "), instead))
	}
	if len(settings) == 0 {
		return
	}
	slices.Sort(settings)
	logs.Warn(ctx, "Found settings of the last release: remove them, the next release refuses them",
		"settings", strings.Join(settings, ". "))
}

// ownNames names the objects that only this agent has.
type ownNames struct {
	lastGoodSecret, recordSecret, handedOutConfigMap, lease string
	userAccountsServiceAccount, userAccountsNamespace       string
}

func (c *Config) ownNames() ownNames {
	return ownNames{
		lastGoodSecret: cmp.Or(
			c.Names.ImpersonationLastGoodSecret,
			c.AppName+"-impersonation-proxy-last-good-certificate",
		),
		recordSecret:               cmp.Or(c.Names.CredentialIssuerRecordSecret, c.AppName+"-credential-issuer-record"),
		handedOutConfigMap:         cmp.Or(c.Names.HandedOutConfigMap, c.AppName+"-handed-out"),
		lease:                      cmp.Or(c.Names.LeaderElectionLease, c.AppName),
		userAccountsServiceAccount: cmp.Or(c.Names.UserAccountsServiceAccount, c.AppName+"-user-accounts"),
		userAccountsNamespace:      cmp.Or(c.UserAccountsNamespace, c.AppName+"-users"),
	}
}
