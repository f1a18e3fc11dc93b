package flowcontrol

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestTheTableIsDocumented compares docs/overload.md with the limits of the default pod. `make update-golden` rewrites
// it.
func TestTheTableIsDocumented(t *testing.T) {
	t.Parallel()
	const begin, end = "<!-- table -->\n", "<!-- end of table -->\n"
	path := filepath.Join("..", "..", "..", "docs", "overload.md")
	content := must.Get(os.ReadFile(path))(t)
	before, rest, ok := strings.Cut(string(content), begin)
	got, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("want %q and %q in %s", begin, end, path)
	}
	want := table()
	if got == want {
		return
	}
	if os.Getenv("UPDATE_GOLDEN") == "" {
		t.Errorf("%s says otherwise (UPDATE_GOLDEN=1 rewrites it): want\n%s", path, want)
		return
	}
	must.Do(t, os.WriteFile(path, []byte(before+begin+want+end+after), 0o600))
}

func table() string {
	const processors = 1
	pod, apis := LimitsFor(DefaultMemory, processors), APILimitsFor(DefaultMemory, processors)
	var b strings.Builder
	fmt.Fprintf(&b, "The tables are for the shipped pod, with %s and %d processor.\n"+
		"Users share %s, and unauthenticated clients share %s.\n"+
		"At the [Concierge APIs port](#the-concierge-apis-port), users share %s, and unauthenticated clients share %s.\n\n",
		mebibytes(DefaultMemory), processors,
		mebibytes(pod.users), mebibytes(pod.unauthenticated), mebibytes(apis.users), mebibytes(apis.unauthenticated))
	b.WriteString(
		"| memory | counted as | limit per user | limit for all unauthenticated clients | when full |\n|---|---|---|---|---|\n",
	)
	for resource := Connection; resource < SlowClient; resource++ {
		most := pod.rows[resource].memory
		share := fmt.Sprintf("%s (1/%d)", mebibytes(most), pod.users/max(1, most))
		if most == 0 {
			share = fmt.Sprintf("%s (all but 1/%d)", mebibytes(pod.users-pod.users/modestPart), modestPart)
		}
		unauthenticated := ""
		if most := pod.rows[resource].unauthenticated; most > 0 {
			unauthenticated = fmt.Sprintf("%s (1/%d)", mebibytes(most), pod.unauthenticated/most)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n",
			resource, counted(resource), share, unauthenticated, fullMemory(resource))
	}
	b.WriteString(
		"\n| work | what needs a seat | seats in all | seats per flow | seats per sub-flow | active and queued per sub-flow | " +
			"limit for all flows | when full |\n|---|---|---|---|---|---|---|---|\n",
	)
	for resource := SlowClient; resource < numResources; resource++ {
		row := pod.rows[resource]
		full := "queued"
		switch {
		case row.refuses:
			full = "the response is cut"
		case row.queued+row.waiting > 0:
			full = "queued, then 429"
		}
		inAll := ""
		if row.most > 0 {
			inAll = fmt.Sprintf("%d active and queued", row.most)
		}
		if row.waiting > 0 {
			inAll = fmt.Sprintf("%d queued", row.waiting)
		}
		perSubFlow := number(row.perSubFlow)
		if row.yielding > 0 {
			perSubFlow += fmt.Sprintf(", or %d for short reads while other users are active", row.yielding)
		}
		fmt.Fprintf(&b, "| %s | %s | %d | %s | %s | %s | %s | %s |\n", resource, work(resource), row.seats,
			number(row.perFlow), perSubFlow, number(row.queued), inAll, full)
	}
	return b.String()
}

func counted(resource Resource) string {
	return [...]string{
		Connection: fmt.Sprintf("%d KiB once accepted, %d KiB once the handshake begins, %d KiB once the first request arrives",
			AcceptedBytes>>10, HandshakeBytes>>10, ConnectionBytes>>10),
		Input:    "the memory that received but unprocessed bytes may need once they are decoded",
		Request:  fmt.Sprintf("%d KiB for each request, plus its head and the buffered part of its body", RequestBytes>>10),
		Stream:   fmt.Sprintf("%d KiB for each stream, plus the head of its request", StreamBytes>>10),
		Response: "the bytes that are buffered for the client",
	}[resource]
}

func work(resource Resource) string {
	return [...]string{
		SlowClient:   fmt.Sprintf("a response that the client has stopped reading: a stream takes 1 seat, any other response takes %d", LongSeats),
		Handshake:    "an unauthenticated client's handshake, for up to a second",
		PreAuth:      "work for the handshake and request of a client that is not authenticated yet; there are half as many seats as processors, but at least one",
		Certificate:  "a client certificate's verification, unless cached; half as many seats as processors, at least one",
		TokenReview:  "a TokenReview, unless its result is cached",
		AccessReview: fmt.Sprintf("a SubjectAccessReview, unless cached; %d seats for an unauthenticated client", UnauthenticatedReview),
		Login:        "a login that the proxy forwards",
		ServedLogin:  "a login that the Concierge APIs serve",
		Forward:      fmt.Sprintf("a request at the API server; one with a long response takes %d seats", LongSeats),
	}[resource]
}

func fullMemory(resource Resource) string {
	switch resource {
	case Input:
		return "reading waits; if no memory becomes free, the connection ends"
	case Response:
		return "429 or 503, but a response that has begun continues without a buffer"
	default:
		return "429 or 503"
	}
}

func mebibytes(n int64) string { return fmt.Sprintf("%d MiB", n>>20) }

func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}
