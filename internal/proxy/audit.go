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

// AuditLog is a log of the requests that the proxy gets: the user, the address, the impersonated user, and the
// response. It has the format of the API server's own audit log and follows the same policy type. A request has the
// same Audit-ID in both logs.
type AuditLog struct {
	sink   audit.Sink
	policy audit.PolicyRuleEvaluator
}

// NewAuditLog makes a log that follows the policy in a file (kind Policy of audit.k8s.io/v1). Each event is one line of
// JSON and one call of to, which several goroutines may make at a time. No level records a body that was sent on.
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

// begin gives each request an Audit-ID, and a context in which the filters can note what they know.
func (l *AuditLog) begin(next http.Handler) http.Handler {
	return filters.WithAuditInit(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		// The API server takes over an ID that it is given.
		req.Header[request.AuditIDHeader] = []string{audit.GetAuditIDTruncated(req.Context())}
		next.ServeHTTP(w, req)
	}))
}

// write logs requests of known users.
func (l *AuditLog) write(next http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	// The filters also use panics to reject requests; those must not be logged as bugs.
	next = recoverPanics(next, s)
	streams := func(req *http.Request, _ *apirequest.RequestInfo) bool { return request.From(req.Context()).IsStream() }
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		brokenOff := false
		filters.WithAudit(http.HandlerFunc(func(logged http.ResponseWriter, req *http.Request) {
			defer func() {
				// A response that breaks off, because its client disconnected for example, is no bug. The log says how
				// it began, as that of the API server does.
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

// informalWriter sends informational responses (1xx) past the audit log, which would record the status code of the
// first response. Otherwise a client could choose the code in the log by Expect: 100-continue.
type informalWriter struct {
	http.ResponseWriter
	informal http.ResponseWriter // has the same header
}

// Unwrap lets http.ResponseController find what the wrapped writer can do.
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

// withoutTokens removes tokens from URLs before they are logged. Tokens have no effect there, but clients put them
// there by mistake.
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
