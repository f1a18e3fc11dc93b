package relay

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

// TestPreventBlindForwarding tests the RoundTripper, the last line of defense, without the filters before it.
func TestPreventBlindForwarding(t *testing.T) {
	t.Parallel()
	sent := roundTrip(func(*http.Request) (*http.Response, error) {
		return nil, fmt.Errorf("a request was sent")
	})
	for name, req := range map[string]*http.Request{
		"no state": {Header: http.Header{}},
		"no user":  (&http.Request{Header: http.Header{}}).WithContext(request.With(t.Context(), &request.State{})),
	} {
		transport := &asUser{next: sent}
		res, err := transport.RoundTrip(req)
		if err == nil {
			_ = res.Body.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "no user to impersonate") {
			t.Errorf("%s: want a refusal, got %v", name, err)
		}
	}
}
