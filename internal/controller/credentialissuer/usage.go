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

	mu sync.RWMutex
	// A use counts for the revision in the status, and for the latest one in the history. The leader appends a revision
	// before it publishes it, and a client may read the status before this replica's watch delivers it.
	published, appended string
	uses                []use // of these revisions and the one before them
}

// use is the recorded use of one revision.
type use struct {
	revision string
	hour     int64
	names    []string
}

// publish sets the revision that the status publishes.
func (u *Usage) publish(issuer *configv1alpha1.CredentialIssuer) {
	id := ""
	for _, revision := range issuer.Status.Revisions {
		if revision.Until == nil {
			id = revision.ID
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.published = id
}

// append sets the latest revision in the history. The leader calls it for what it appends, other replicas for what they
// read.
func (u *Usage) append(h serving.History) {
	id := ""
	if current := h.Current(); current != nil {
		id = current.ID
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.appended = id
}

// Note records that a client used the proxy by this name, for which leaf was served. The name is empty if the client
// has not proved that it knows the name.
func (u *Usage) Note(name string, leaf *x509.Certificate) {
	hour := u.Clock.Now().Unix() / int64(time.Hour/time.Second)
	if name != "" && (leaf == nil || slices.Contains(leaf.DNSNames, name) || leaf.VerifyHostname(name) != nil) {
		name = "" // only names under a wildcard are recorded
	}
	u.mu.RLock()
	known := u.noted(u.published, hour, name) && u.noted(u.appended, hour, name)
	u.mu.RUnlock()
	if known {
		return
	}
	u.mu.Lock()
	u.note(u.published, hour, name)
	u.note(u.appended, hour, name)
	u.mu.Unlock()
	u.Changed()
}

func (u *Usage) noted(revision string, hour int64, name string) bool {
	for _, of := range u.uses {
		if of.revision == revision && of.hour == hour {
			return name == "" || slices.Contains(of.names, name) || len(of.names) >= serving.MaxUsedNames
		}
	}
	return revision == ""
}

func (u *Usage) note(revision string, hour int64, name string) {
	if u.noted(revision, hour, name) {
		return
	}
	i := slices.IndexFunc(u.uses, func(of use) bool { return of.revision == revision })
	if i < 0 {
		u.uses = append(u.uses[max(0, len(u.uses)-2):], use{revision: revision})
		i = len(u.uses) - 1
	}
	u.uses[i].hour = hour
	if name != "" && len(u.uses[i].names) < serving.MaxUsedNames && !slices.Contains(u.uses[i].names, name) {
		u.uses[i].names = append(slices.Clone(u.uses[i].names), name)
	}
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
