package proxy

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/endpoints/filters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	auditlog "k8s.io/apiserver/plugin/pkg/audit/log"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

// AuditLog logs the requests that the proxy receives: user, address, impersonated user, and response. It has the format
// of the API server's audit log and uses the same policy type. A request has the same Audit-ID in both logs.
type AuditLog struct {
	sink   audit.Sink
	policy audit.PolicyRuleEvaluator
}

// NewAuditLog returns a log with the policy in policyFile (kind Policy of audit.k8s.io/v1). Each event is one line of
// JSON and one Write to to, which must be safe for concurrent use. No level records forwarded bodies.
func NewAuditLog(policyFile string, to io.Writer) (*AuditLog, error) {
	rules, err := policy.LoadPolicyFromFile(policyFile)
	if err != nil {
		return nil, fmt.Errorf("reading the audit policy: %w", err)
	}
	return &AuditLog{
		sink:   withoutTokens{auditlog.NewBackend(to, auditlog.FormatJson, auditv1.SchemeGroupVersion)},
		policy: policy.NewPolicyRuleEvaluator(rules),
	}, nil
}

// begin gives each request an Audit-ID, and a context in which filters can add audit annotations.
func (l *AuditLog) begin(next http.Handler) http.Handler {
	return filters.WithAuditInit(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		// The API server uses the ID that it receives.
		req.Header[request.AuditIDHeader] = []string{audit.GetAuditIDTruncated(req.Context())}
		next.ServeHTTP(w, req)
	}))
}

// write logs requests of authenticated users.
func (l *AuditLog) write(next http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	// The filters also use panics to reject requests; those must not be logged as bugs.
	next = recoverPanics(next, s)
	streams := func(req *http.Request, _ *apirequest.RequestInfo) bool { return request.From(req.Context()).IsStream() }
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		brokenOff := false
		filters.WithAudit(http.HandlerFunc(func(logged http.ResponseWriter, req *http.Request) {
			defer func() {
				// A response that breaks off, for example because its client disconnected, is not a bug. The log has
				// the status with which it began, like the API server's log.
				p := recover()
				brokenOff = p == http.ErrAbortHandler && request.From(req.Context()).Code != 0 //nolint:errorlint // the very value
				if p != nil && !brokenOff {
					panic(p)
				}
			}()
			next.ServeHTTP(&informalWriter{logged, w}, req)
		}), l.sink, l.policy, streams).ServeHTTP(w, req)
		if brokenOff {
			panic(http.ErrAbortHandler)
		}
	})
}

// informalWriter sends informational responses (1xx) past the audit log, which would record the first status code.
// Otherwise a client could choose the code in the log with Expect: 100-continue.
type informalWriter struct {
	http.ResponseWriter
	informal http.ResponseWriter // has the same header
}

// Unwrap is for http.ResponseController.
func (w *informalWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *informalWriter) WriteHeader(code int) {
	if code < http.StatusOK && code != http.StatusSwitchingProtocols {
		w.informal.WriteHeader(code)
		return
	}
	w.ResponseWriter.WriteHeader(code)
}

// writeRefused logs requests that could not be authenticated.
func (l *AuditLog) writeRefused(next http.Handler) http.Handler {
	return filters.WithFailedAuthenticationAudit(next, l.sink, l.policy)
}

// withoutTokens removes tokens from URLs before they are logged. They have no effect there, but clients send them by
// mistake.
type withoutTokens struct{ audit.Sink }

func (s withoutTokens) ProcessEvents(events ...*auditinternal.Event) bool {
	for _, event := range events {
		event.RequestURI = withoutToken(event.RequestURI)
	}
	return s.Sink.ProcessEvents(events...)
}

func withoutToken(uri string) string {
	path, query, found := strings.Cut(uri, "?")
	if !found {
		return uri
	}
	parts := strings.Split(query, "&")
	for i, part := range parts {
		name, _, _ := strings.Cut(part, "=")
		if plain, err := url.QueryUnescape(name); err != nil || strings.HasSuffix(strings.ToLower(plain), "token") {
			parts[i] = name + "=[removed]"
		}
	}
	return path + "?" + strings.Join(parts, "&")
}
