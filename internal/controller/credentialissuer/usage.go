package credentialissuer

import (
	"crypto/x509"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// Usage records which revisions clients use at this replica. The leader reads it from the replica's Lease. It changes
// at most once an hour for each revision, and once for each name under a wildcard.
type Usage struct {
	// Changed triggers a reconcile.
	Changed func()
	Clock   clock.PassiveClock

	mu       sync.RWMutex
	revision string
	uses     []use // of the published revision and the one before it
}

// use is the recorded use of one revision.
type use struct {
	revision string
	hour     int64
	names    []string
}

// publish sets which revision is published now.
func (u *Usage) publish(issuer *configv1alpha1.CredentialIssuer) {
	id := ""
	for _, revision := range issuer.Status.Revisions {
		if revision.Until == nil {
			id = revision.ID
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.revision = id
}

// Note records that a client used the proxy by this name, for which leaf was served. The name is empty if the client
// has not proved that it knows the name.
func (u *Usage) Note(name string, leaf *x509.Certificate) {
	hour := u.Clock.Now().Unix() / int64(time.Hour/time.Second)
	if name != "" && (leaf == nil || slices.Contains(leaf.DNSNames, name) || leaf.VerifyHostname(name) != nil) {
		name = "" // only names under a wildcard are recorded
	}
	u.mu.RLock()
	known := u.revision == "" || u.noted(hour, name)
	u.mu.RUnlock()
	if known {
		return
	}
	u.mu.Lock()
	i := slices.IndexFunc(u.uses, func(of use) bool { return of.revision == u.revision })
	if i < 0 {
		u.uses = append(u.uses[max(0, len(u.uses)-1):], use{revision: u.revision})
		i = len(u.uses) - 1
	}
	u.uses[i].hour = hour
	if name != "" && len(u.uses[i].names) < serving.MaxUsedNames && !slices.Contains(u.uses[i].names, name) {
		u.uses[i].names = append(slices.Clone(u.uses[i].names), name)
	}
	u.mu.Unlock()
	u.Changed()
}

func (u *Usage) noted(hour int64, name string) bool {
	for _, of := range u.uses {
		if of.revision == u.revision && of.hour == hour {
			return name == "" || slices.Contains(of.names, name) || len(of.names) >= serving.MaxUsedNames
		}
	}
	return false
}

// report encodes the uses for the Lease: "REVISION@HOUR NAME…" for each revision, separated by semicolons.
func (u *Usage) report() string {
	u.mu.RLock()
	defer u.mu.RUnlock()
	var all []string
	for _, of := range u.uses {
		all = append(all, strings.Join(append([]string{fmt.Sprintf("%s@%d", of.revision, of.hour)}, of.names...), " "))
	}
	return strings.Join(all, ";")
}

// addUses returns the history with the uses in a replica's report.
func addUses(h serving.History, report string) serving.History {
	for text := range strings.SplitSeq(report, ";") {
		fields := strings.Fields(text)
		if len(fields) == 0 {
			continue
		}
		id, after, _ := strings.Cut(fields[0], "@")
		hour, err := strconv.ParseInt(after, 10, 64)
		if err != nil {
			continue
		}
		at := time.Unix(hour*int64(time.Hour/time.Second), 0)
		h, _ = h.Used(id, "", at)
		for _, name := range fields[1:] {
			h, _ = h.Used(id, name, at)
		}
	}
	return h
}
