package session

import (
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// serverClock keeps what the API server's clock reads, from the Date header of its answers.
type serverClock struct {
	now func() time.Time

	mu  sync.Mutex
	gap time.Duration // how far the server's clock is ahead
	set bool
}

// watch makes config's requests tell the time.
func (c *serverClock) watch(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(request)
			if err == nil {
				c.read(response.Header.Get("Date"))
			}
			return response, err
		})
	})
}

func (c *serverClock) read(header string) {
	date, err := http.ParseTime(header)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gap, c.set = date.Sub(c.now()), true
}

// at returns what the server's clock reads at now; zero when it is not known.
func (c *serverClock) at(now time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.set {
		return time.Time{}
	}
	return now.Add(c.gap)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }
