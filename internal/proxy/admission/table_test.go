package admission

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
		"strangers %s; at the port of the Concierge APIs %s and %s.\n\n",
		mebibytes(DefaultMemory), processors,
		mebibytes(pod.users), mebibytes(pod.strangers), mebibytes(apis.users), mebibytes(apis.strangers))
	b.WriteString(
		"| memory | what it is counted as | one user | all strangers | when it is full |\n|---|---|---|---|---|\n",
	)
	for kind := Connection; kind < Unread; kind++ {
		most := pod.rows[kind].memory
		share := fmt.Sprintf("%s, 1/%d", mebibytes(most), pod.users/max(1, most))
		if most == 0 {
			share = fmt.Sprintf("%s, all but 1/%d", mebibytes(pod.users-pod.users/modestPart), modestPart)
		}
		strangers := ""
		if most := pod.rows[kind].strangers; most > 0 {
			strangers = fmt.Sprintf("%s, 1/%d", mebibytes(most), pod.strangers/most)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", kind, counted(kind), share, strangers, fullMemory(kind))
	}
	b.WriteString("\n| work | what it is | seats in all | of one owner | of one member | most of one member, with and " +
		"without seats | most in all | when it is full |\n|---|---|---|---|---|---|---|---|\n")
	for kind := Unread; kind < numKinds; kind++ {
		row := pod.rows[kind]
		full := "it waits"
		switch {
		case row.refuses:
			full = "the answer ends"
		case row.queued+row.waiting > 0:
			full = "it waits, then 429"
		}
		inAll := number(row.most)
		if row.waiting > 0 {
			inAll = fmt.Sprintf("%d that wait", row.waiting)
		}
		perMember := number(row.perMember)
		if row.yielding > 0 {
			perMember += fmt.Sprintf(", short reads %d when others came within a second", row.yielding)
		}
		fmt.Fprintf(&b, "| %s | %s | %d | %s | %s | %s | %s | %s |\n", kind, work(kind), row.seats,
			number(row.perOwner), perMember, number(row.queued), inAll, full)
	}
	return b.String()
}

func counted(kind Kind) string {
	return [...]string{
		Connection: fmt.Sprintf("%d KiB when it comes, %d from its handshake on, %d from its first request on",
			AcceptedBytes>>10, HandshakeBytes>>10, ConnectionBytes>>10),
		Input:   "what was sent and may become of it, as long as nothing does",
		Request: fmt.Sprintf("%d KiB, its head, and of its body what waits here", RequestBytes>>10),
		Stream:  fmt.Sprintf("%d KiB and its head", StreamBytes>>10),
		Answer:  "what may wait here for the client",
	}[kind]
}

func work(kind Kind) string {
	return [...]string{
		Unread:       fmt.Sprintf("a stream that the client has stopped reading; any other answer takes %d", LongSeats),
		Handshake:    "a stranger's handshake, for as long as its client takes, but a second at most",
		Look:         "a stranger's handshake, or request until it is known who asks; half of the processors",
		Certificate:  "a client certificate that is not known; half of the processors",
		TokenReview:  "a bearer token that is not known",
		AccessReview: fmt.Sprintf("a permission that is not known; a stranger's takes %d", StrangersReview),
		Login:        "a login that is sent on",
		ServedLogin:  "a login that comes back to the Concierge APIs",
		Forward:      fmt.Sprintf("a request at the API server; one for a long answer takes %d", LongSeats),
	}[kind]
}

func fullMemory(kind Kind) string {
	switch kind {
	case Input:
		return "it waits, then the connection ends"
	case Answer:
		return "429 or 503; of one that has begun, no more is taken ahead"
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
