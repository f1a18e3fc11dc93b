package login

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/oauth2"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/pinniped-toolkit/pinniped/internal/oidclogin"
)

// cancelling is a user who cancels each login in the browser.
type cancelling struct{ browsers int }

func (c *cancelling) Token(context.Context) (*oidclogin.Token, error) {
	c.browsers++
	return nil, fmt.Errorf("logging in: %w", &oauth2.RetrieveError{
		Response: &http.Response{StatusCode: http.StatusBadRequest}, ErrorCode: "access_denied",
	})
}

func (c *cancelling) Renew(ctx context.Context) (*oidclogin.Token, error) { return c.Token(ctx) }

// TestARefusalCounts checks that kubectl does not start another login right after the user has cancelled one.
func TestARefusalCounts(t *testing.T) {
	t.Parallel()
	now, parent := time.Now(), 4711
	person, path := &cancelling{}, filepath.Join(t.TempDir(), "credentials.yaml")
	run := func() error {
		plugin := &Plugin{
			IOStreams: genericiooptions.IOStreams{Out: io.Discard, ErrOut: io.Discard}, Parent: func() int { return parent },
			CachePath: path, Now: func() time.Time { return now },
		}
		return plugin.run(t.Context(), "", person)
	}
	first := run()
	for range 5 {
		if err := run(); err == nil || err.Error() != first.Error() {
			t.Errorf("want %v, got %v", first, err)
		}
	}
	if person.browsers != 1 {
		t.Errorf("%d browsers were opened", person.browsers)
	}
	parent++ // the next command
	if err := run(); err == nil || person.browsers != 2 {
		t.Errorf("%d browsers, %v", person.browsers, err)
	}
	now = now.Add(time.Minute) // k9s retries later
	if err := run(); err == nil || person.browsers != 3 {
		t.Errorf("%d browsers, %v", person.browsers, err)
	}
}
