package proxy

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity/clienttrust"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/listener"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestLimitsAreDocumented compares the limits in the code with the table in the reference.
func TestLimitsAreDocumented(t *testing.T) {
	t.Parallel()
	content := must.Get(os.ReadFile(filepath.Join("..", "..", "docs", "reference", "agent.md")))(t)
	server := newHTTPServer(nil, nil, io.Discard)
	seconds := func(d time.Duration) string { return fmt.Sprintf("%d s", int(d.Seconds())) }
	kib := func(n int) string {
		if n%(1<<20) == 0 {
			return fmt.Sprintf("%d MiB", n>>20)
		}
		return fmt.Sprintf("%d KiB", n>>10)
	}
	var o Options
	o.setDefaults()
	for what, limit := range map[string]string{
		"request header, all lines together": kib(server.MaxHeaderBytes) + ", then 431",
		"concurrent HTTP/2 streams per connection": fmt.Sprintf("%d, authenticated or not",
			server.HTTP2.MaxConcurrentStreams),
		"HTTP/2 frame from a client": kib(server.HTTP2.MaxReadFrameSize),
		"buffered request body": fmt.Sprintf(
			"%s before the request is forwarded; for a larger body, %s per stream and %s per connection",
			kib(listener.MaxHeldBody),
			kib(server.HTTP2.MaxReceiveBufferPerStream), kib(server.HTTP2.MaxReceiveBufferPerConnection),
		),
		"time for the TLS handshake, and then for the header of a request":       seconds(server.ReadHeaderTimeout) + " each",
		"time from the header of a non-streaming request to the end of its body": seconds(o.BodyTimeout) + ", then 400",
		"connection without a request":                                           seconds(server.IdleTimeout) + ", then it is closed",
		"HTTP/2 client that does not acknowledge pings": seconds(server.HTTP2.SendPingTimeout) + " until a ping is sent, and " +
			seconds(server.HTTP2.PingTimeout) + " for the acknowledgement, then its streams end",
		"response to a slow client": seconds(o.WriteTimeout) + " for each 32 KiB, then it ends; only " + seconds(slowAfter) +
			" while all seats for [slow clients](../overload.md#limits) are taken",
		"connection whose client reads nothing": seconds(server.HTTP2.WriteByteTimeout) + ", then it is closed",
		"time to finish at shutdown": "streams: `shutdownDelay` + " + seconds(o.StreamGrace) +
			"; other requests: `shutdownDelay` + " + seconds(o.DrainTimeout),
		"certificates that a client may present": fmt.Sprintf(
			"%d, with at most %d intermediates of the same subject; then 401", clienttrust.MaxPresented, clienttrust.MaxOfOneName,
		),
		"cached rejections of certificates": fmt.Sprintf(
			"%[1]d for users and %[1]d for front proxies, for %.0[2]f minute or until a CA changes",
			clienttrust.MaxRefused, clienttrust.RefusedFor.Minutes(),
		),
		"body of a TokenCredentialRequest": kib(maxLogin) + ", then 413",
	} {
		if row := "| " + what + " | " + limit + " |\n"; !strings.Contains(string(content), row) {
			t.Errorf("docs/reference/agent.md has no row %q", row)
		}
	}
	text := fmt.Sprintf("has not read it for %d ms and", aheadAfter.Milliseconds())
	if !strings.Contains(string(content), text) {
		t.Errorf("docs/reference/agent.md does not say %q", text)
	}
}

// TestTheOrderIsDocumented compares the table in docs/overload.md with the code: the steps of listener.Conn.Read, the
// filters of handler, and the RoundTrippers of the forwarder.
func TestTheOrderIsDocumented(t *testing.T) {
	t.Parallel()
	text := must.Get(os.ReadFile(filepath.Join("..", "..", "docs", "overload.md")))(t)
	_, table, _ := strings.Cut(string(text), "<!-- order -->")
	table, _, _ = strings.Cut(table, "<!-- end of order -->")
	documented := map[string][]string{}
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, " | "); len(cells) > 2 && strings.HasPrefix(cells[1], "`") {
			where := strings.TrimPrefix(cells[0], "| ")
			documented[where] = append(documented[where], strings.Trim(cells[1], "`"))
		}
	}
	filters := called(t, "chain.go", "handler", func(name string) bool {
		return !slices.Contains([]string{"NewInfoResolver", "NewLongResponses", "Unauthenticated", "writeRefused"}, name)
	})
	forward := called(t, filepath.Join("relay", "forward.go"), "proxy", func(name string) bool {
		return slices.Contains([]string{"asUser", "holdResponse"}, name)
	})
	// A request passes the filters from the last to the first.
	slices.Reverse(filters)
	for where, got := range map[string][]string{
		"read":    called(t, filepath.Join("listener", "conn.go"), "Read", nil),
		"filter":  filters,
		"forward": forward,
	} {
		if diff := cmp.Diff(got, documented[where]); diff != "" {
			t.Errorf("steps of %s (-code +docs/overload.md):\n%s", where, diff)
		}
	}
}

// called returns the wanted names of what a function calls or creates, in source order. If wanted is nil, these are the
// methods of listener.Conn.
func called(t *testing.T, file, function string, wanted func(string) bool) (names []string) {
	t.Helper()
	parsed := must.Get(parser.ParseFile(token.NewFileSet(), file, nil, 0))(t)
	for _, one := range parsed.Decls {
		declared, ok := one.(*ast.FuncDecl)
		if !ok || declared.Name.Name != function {
			continue
		}
		ast.Inspect(declared.Body, func(node ast.Node) bool {
			name := nameOf(node)
			switch {
			case name == "":
			case wanted == nil && slices.Contains([]string{"Load", "Read"}, name):
			case wanted != nil && !wanted(name):
			case slices.Contains(names, name):
			default:
				names = append(names, name)
			}
			return true
		})
	}
	return names
}

// nameOf returns the name of what a node calls or creates.
func nameOf(node ast.Node) string {
	var what ast.Expr
	switch n := node.(type) {
	case *ast.CallExpr:
		what = n.Fun
	case *ast.CompositeLit:
		what = n.Type
	}
	switch w := what.(type) {
	case *ast.Ident:
		return w.Name
	case *ast.SelectorExpr:
		return w.Sel.Name
	}
	return ""
}
