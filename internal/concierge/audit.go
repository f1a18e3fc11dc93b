package concierge

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/klog/v2"
)

// auditLog logs the results of TokenCredentialRequests. Existing log queries rely on the messages and keys.
type auditLog struct {
	logger    klog.Logger
	showNames bool
}

func (a auditLog) event(ctx context.Context, message string, facts ...any) {
	facts = append([]any{
		"auditEvent", true,
		"auditID", audit.GetAuditIDTruncated(ctx),
		"sourceIPs", sourceIPs(ctx),
	}, facts...)
	a.logger.Info(message, facts...)
}

// names returns the username and groups of a user as log keys and values, redacted unless showNames is set.
func (a auditLog) names(who user.Info) []any {
	if a.showNames {
		return []any{"username", who.GetName(), "groups", who.GetGroups()}
	}
	return []any{"username", "redacted", "groups", fmt.Sprintf("redacted %d values", len(who.GetGroups()))}
}

// tokenID returns a hash that identifies a token in log lines without revealing it.
func tokenID(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

type sourceIPsKey struct{}

// withSourceIPs stores the source addresses of a request for the audit log: those that proxies report, then the peer.
func withSourceIPs(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var addresses []string
		for _, ip := range utilnet.SourceIPs(r) {
			addresses = append(addresses, ip.String())
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), sourceIPsKey{}, addresses)))
	})
}

func sourceIPs(ctx context.Context) []string {
	addresses, _ := ctx.Value(sourceIPsKey{}).([]string)
	return addresses
}
