package session

import (
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// serverClock measures the API server's clock by the Date header of its responses.
type serverClock struct {
	now func() time.Time

	mu  sync.Mutex
	gap time.Duration // how far the server's clock is ahead
	set bool
}

// watch makes the clock read the responses to config's requests.
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

// at returns the server's time at now, or zero if unknown.
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
