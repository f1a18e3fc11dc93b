package flowcontrol

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestTheTableIsDocumented compares docs/overload.md with the limits of the pod as it is shipped: `make update-golden`
// rewrites it.
func TestTheTableIsDocumented(t *testing.T) {
	t.Parallel()
	const begin, end = "<!-- table -->\n", "<!-- end of table -->\n"
	path := filepath.Join("..", "..", "..", "docs", "overload.md")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
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
	if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o600); err != nil {
		t.Fatal(err)
	}
}

func table() string {
	const processors = 1
	pod, apis := LimitsFor(DefaultMemory, processors), APILimitsFor(DefaultMemory, processors)
	var b strings.Builder
	fmt.Fprintf(&b, "With the %s and %d processor of the pod as it is shipped, all users together may hold %s, and all "+
		"unauthenticated clients %s; at the port of the Concierge APIs %s and %s.\n\n",
		mebibytes(DefaultMemory), processors,
		mebibytes(pod.users), mebibytes(pod.unauthenticated), mebibytes(apis.users), mebibytes(apis.unauthenticated))
	b.WriteString(
		"| memory | what it is counted as | one user | all unauthenticated clients | when it is full |\n|---|---|---|---|---|\n",
	)
	for resource := Connection; resource < SlowClient; resource++ {
		most := pod.rows[resource].memory
		share := fmt.Sprintf("%s, 1/%d", mebibytes(most), pod.users/max(1, most))
		if most == 0 {
			share = fmt.Sprintf("%s, all but 1/%d", mebibytes(pod.users-pod.users/modestPart), modestPart)
		}
		unauthenticated := ""
		if most := pod.rows[resource].unauthenticated; most > 0 {
			unauthenticated = fmt.Sprintf("%s, 1/%d", mebibytes(most), pod.unauthenticated/most)
		}
		fmt.Fprintf(
			&b,
			"| %s | %s | %s | %s | %s |\n",
			resource,
			counted(resource),
			share,
			unauthenticated,
			fullMemory(resource),
		)
	}
	b.WriteString(
		"\n| work | what it is | seats in all | of one flow | of one sub-flow | most of one sub-flow, with and " +
			"without seats | most in all | when it is full |\n|---|---|---|---|---|---|---|---|\n",
	)
	for resource := SlowClient; resource < numResources; resource++ {
		row := pod.rows[resource]
		full := "it waits"
		switch {
		case row.refuses:
			full = "the response ends"
		case row.queued+row.waiting > 0:
			full = "it waits, then 429"
		}
		inAll := number(row.most)
		if row.waiting > 0 {
			inAll = fmt.Sprintf("%d that wait", row.waiting)
		}
		perSubFlow := number(row.perSubFlow)
		if row.yielding > 0 {
			perSubFlow += fmt.Sprintf(", short reads %d when others came within a second", row.yielding)
		}
		fmt.Fprintf(&b, "| %s | %s | %d | %s | %s | %s | %s | %s |\n", resource, work(resource), row.seats,
			number(row.perFlow), perSubFlow, number(row.queued), inAll, full)
	}
	return b.String()
}

func counted(resource Resource) string {
	return [...]string{
		Connection: fmt.Sprintf("%d KiB when it comes, %d from its handshake on, %d from its first request on",
			AcceptedBytes>>10, HandshakeBytes>>10, ConnectionBytes>>10),
		Input:    "what was sent and may become of it, as long as nothing does",
		Request:  fmt.Sprintf("%d KiB, its head, and of its body what waits here", RequestBytes>>10),
		Stream:   fmt.Sprintf("%d KiB and its head", StreamBytes>>10),
		Response: "what may wait here for the client",
	}[resource]
}

func work(resource Resource) string {
	return [...]string{
		SlowClient:   fmt.Sprintf("a stream that the client has stopped reading; any other response takes %d", LongSeats),
		Handshake:    "an unauthenticated client's handshake, for as long as its client takes, but a second at most",
		PreAuth:      "the handshake and request of an unauthenticated client until it is known who asks; half of the processors",
		Certificate:  "a client certificate that is not known; half of the processors",
		TokenReview:  "a bearer token that is not known",
		AccessReview: fmt.Sprintf("a permission that is not known; an unauthenticated client's takes %d", UnauthenticatedReview),
		Login:        "a login that is sent on",
		ServedLogin:  "a login that comes back to the Concierge APIs",
		Forward:      fmt.Sprintf("a request at the API server; one for a long response takes %d", LongSeats),
	}[resource]
}

func fullMemory(resource Resource) string {
	switch resource {
	case Input:
		return "it waits, then the connection ends"
	case Response:
		return "429 or 503; of one that has begun, no more is read ahead"
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
