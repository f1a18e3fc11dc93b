package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// attackVariable is set in the environment of an attacker: this same program, started again so that its processor
// time can be told from that of the honest users.
const attackVariable = "PINNIPED_BENCH_ATTACKER"

// order says what an attacker is to do. It reads it from its standard input.
type order struct {
	Attack  string
	Address string // of the proxy
	CA      []byte // of the proxy
	// ServerName is what its certificate is for, if not its address.
	ServerName string
	// of a user who may read, or what the attack presents instead; none for attackers without credentials
	Certificate []byte
	Key         []byte
	Users       [][2][]byte // certificates and keys of many others
	Connections int
	Seconds     float64
	Salt        string // makes names that were never asked for
}

// toll counts what an attacker did and was answered. It writes it to its standard output.
type toll struct {
	Connections, Requests, Answered, Refused, Closed, Failed int64
}

type tally struct {
	connections, requests, answered, refused, closed, failed atomic.Int64
}

func (t *tally) toll() toll {
	return toll{
		Connections: t.connections.Load(),
		Requests:    t.requests.Load(),
		Answered:    t.answered.Load(),
		Refused:     t.refused.Load(),
		Closed:      t.closed.Load(),
		Failed:      t.failed.Load(),
	}
}

// attack is one way to hurt the other users of the proxy.
type attack struct {
	name, about string
	// needs says what the attacker has: nothing, a user's certificate, those of many users, or a chain that costs much to
	// verify.
	needs credential
	run   func(ctx context.Context, a *attacker)
}

type credential int

const (
	nothing credential = iota
	userCertificate
	costlyChain
	userCertificates
)

// manyOthers is how many users attack together.
const manyOthers = 100

// attacks are those of the table in docs/performance.md, and more.
func attacks() []attack { return slices.Concat(usualAttacks(), moreAttacks(), apiAttacks()) }

// usualAttacks are those that hurt once, when little was bounded.
func usualAttacks() []attack {
	return []attack{
		{"unread", "unread answers, window 0", userCertificate, unread},
		{"reset", "rapid reset, on many connections", nothing, reset},
		{"chain", "101 P-521 certificates", costlyChain, askAgain("/version", nil)},
		{"questions", "new questions of one user", userCertificate, questions},
		{"tokens", "bad bearer tokens", nothing, tokens},
		{"logins", "wrong passwords", nothing, logins},
		{"headers", "many small headers, window 0", nothing, manyHeaders},
		{"idle", "idle connections", nothing, idleConnections},
		{"slow", "headers, bodies and windows byte by byte", userCertificate, slow},
		{"unfinished", "headers without an end, frames without effect", nothing, unfinished},
		{"begun", "short headers without an end", nothing, begun},
		// No attacks: what the attackers' own computing costs the others on a machine that all share.
		{"compute", "none, but one processor is busy", nothing, compute(1)},
		{"compute-2", "none, but two processors are busy", nothing, compute(2)},
	}
}

// moreAttacks are of other kinds and sizes. Most never hurt.
func moreAttacks() []attack {
	return []attack{
		{"paths", "unread refusals of paths of 1 MB", nothing, longPaths("/?pad=")},
		{"selectors", "requests about 30,000 labels", nothing, selectors(60_000)},
		{"labels", "lists of what has 4000 labels", userCertificate, selectors(8000)},
		{"watchpaths", "unread watches with paths of 1 MB", userCertificate, longPaths(allObjects + "&pad=")},
		{"tables", "headers of references to a full table", userCertificate, tables},
		{"references", "the same without credentials", nothing, tables},
		{"continuations", "headers that go on with nothing", nothing, continuations},
		{"trailers", "trailers without an end", nothing, trailers},
		{"gate", "requests that wait behind a body that does not come", nothing, gateWait},
		{"nested", "impersonation with new names, groups and keys", userCertificate, nested},
		{"refusals", "100,000 unread refusals", userCertificate, unreadRefusals},
		{"bytewise", "windows of one byte", userCertificate, bytewise},
		{"flapping", "windows to and fro, beside unread watches", userCertificate, flapping},
		{"watches", "unread watches of everything", userCertificate, unreadWatches},
		{"burst", "10,000 unread watches of what changes", userCertificate, watchedBurst},
		{"resets", "rapid reset of a user's requests", userCertificate, reset},
		{"leavers", "watches that are left when they begin", userCertificate, leaveWhenBegun(allObjects)},
		{"leavers-lists", "lists that are left when they begin", userCertificate, leaveWhenBegun(configMaps)},
		{"pipelines", "HTTP/1.1 requests without end, half unread", userCertificate, pipelines},
		{"expect", "bodies that are announced and do not come", userCertificate, expect},
		{"chunks", "bodies in chunks of one byte", userCertificate, chunks},
		{"bodies", "1000 large bodies, half without an end", userCertificate, bodies},
		{"slowlists", "HTTP/1.1 lists read byte by byte", userCertificate, slowLists},
		{"sockets", "websockets and SPDY, unread or flooded", userCertificate, sockets},
		{"whoami", "WhoAmIRequests that are hard to decode", userCertificate, whoAmI},
		{"lists", "long lists and descriptions of the API, read", userCertificate, readLists},
		{"hellos", "TLS handshakes in pieces, and given up", nothing, hellos},
		{"records", "TLS records of one byte", userCertificate, records},
		{"users", "100 users with a tenth of their shares each", userCertificates, manyUsers},
		{"mixture", "nine attacks at once", userCertificate, mixture},
		{"handshakes", "TLS handshakes, complete and given up", nothing, handshakes},
		{"replays", "one client hello again and again", nothing, replays(0)},
		{"curves", "one client hello with P-521 again and again", nothing, replays(tls.CurveP521)},
		{"verifies", "P-521 certificates, with signatures that are none", userCertificate, badSignatures},
		{"halfopen", "6000 connections of 200 addresses, without a hello", nothing, halfOpen},
		{"yaml", "logins of 64 kB of YAML", nothing, yamlLogins},
		{"shared", "60 users' 6000 watches of what changes", userCertificates, sharedBurst},
		{"smallheads", "10,200 watches with 66 small headers each", userCertificate, smallHeads},
	}
}

// apiAttacks go to the port of the Concierge APIs, whatever -port says.
func apiAttacks() []attack {
	return []attack{
		{"api-posts", "the APIs' port: bodies that do not come", nothing, unfinishedPosts},
		{"api-paths", "the APIs' port: new paths, on 200 connections", nothing, newPaths},
		{"api-tokens", "the APIs' port: bad bearer tokens, on 200 connections", nothing, newTokens},
		{"api-curves", "the APIs' port: one client hello with P-521", nothing, replays(tls.CurveP521)},
	}
}

// portOf is the port that an attack goes to.
func (o *options) portOf(one attack) string {
	if slices.Contains(namesOf(apiAttacks()), one.name) {
		return portAPI
	}
	return o.Port
}

// attacker is the process of an attack.
type attacker struct {
	order
	*tally
	tls *tls.Config
}

// with is the attacker with other settings of TLS.
func (a *attacker) with(change func(config *tls.Config)) *attacker {
	other := &attacker{order: a.order, tally: a.tally, tls: a.tls.Clone()}
	change(other.tls)
	return other
}

// as is the attacker with another certificate, or without one.
func (a *attacker) as(certificate *tls.Certificate) *attacker {
	return a.with(func(config *tls.Config) {
		config.GetClientCertificate = nil
		if certificate != nil {
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate, nil }
		}
	})
}

// isAttacker reports whether this process is one.
func isAttacker() bool { return os.Getenv(attackVariable) != "" }

// runAttacker does what the order on in says, until its time is over or the one who gave it has gone.
func runAttacker(in io.Reader, out io.Writer) error {
	decoder := json.NewDecoder(in)
	a := &attacker{tally: &tally{}}
	if err := decoder.Decode(&a.order); err != nil {
		return fmt.Errorf("reading what to attack: %w", err)
	}
	host, _, err := net.SplitHostPort(a.Address)
	if err != nil {
		return fmt.Errorf("reading what to attack: %w", err)
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return fmt.Errorf("%s is not on this machine, and no other is ever attacked", a.Address)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.CA)
	a.tls = &tls.Config{RootCAs: roots, ServerName: cmp.Or(a.ServerName, host), MinVersion: tls.VersionTLS12}
	if len(a.Certificate) > 0 {
		certificate, err := tls.X509KeyPair(a.Certificate, a.Key)
		if err != nil {
			return fmt.Errorf("reading the attacker's certificate: %w", err)
		}
		// Also when it is of none of the CAs that the proxy names: then Go would present nothing.
		a.tls.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificate, nil }
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(a.Seconds*float64(time.Second)))
	defer cancel()
	go func() { // the bench is gone, or has seen enough
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	for _, one := range attacks() {
		if one.name == a.Attack {
			one.run(ctx, a)
			return json.NewEncoder(out).Encode(a.toll())
		}
	}
	return fmt.Errorf("unknown attack %q", a.Attack)
}

// attacking is an attack under way.
type attacking struct {
	command *exec.Cmd
	stdin   io.WriteCloser
	out     bytes.Buffer
	errOut  bytes.Buffer
}

func startAttack(ctx context.Context, o order) (*attacking, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	encoded, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	a := &attacking{command: yielding(ctx, program)}
	a.command.Env = append(os.Environ(), attackVariable+"=1")
	a.command.Stdout, a.command.Stderr = &a.out, &a.errOut
	a.command.WaitDelay = 5 * time.Second
	if a.stdin, err = a.command.StdinPipe(); err != nil {
		return nil, err
	}
	if err := a.command.Start(); err != nil {
		return nil, err
	}
	if _, err := a.stdin.Write(append(encoded, '\n')); err != nil {
		_, _, stopErr := a.stop()
		return nil, errors.Join(err, stopErr)
	}
	return a, nil
}

// yielding returns a command that computes while a processor is idle (SCHED_IDLE). Attackers have machines of their
// own, and what they compute there slows no user. Without chrt (util-linux, on Linux) they compete for the processors.
func yielding(ctx context.Context, program string) *exec.Cmd {
	chrt, err := exec.LookPath("chrt")
	if err != nil {
		return exec.CommandContext(ctx, program)
	}
	return exec.CommandContext(ctx, chrt, "--idle", "0", program)
}

// stop ends the attack and returns what it did, and the processor time it took.
func (a *attacking) stop() (toll, time.Duration, error) {
	_ = a.stdin.Close()
	var did toll
	if err := a.command.Wait(); err != nil {
		return did, 0, fmt.Errorf("attacking: %w: %s", err, a.errOut.String())
	}
	if err := json.Unmarshal(a.out.Bytes(), &did); err != nil {
		return did, 0, fmt.Errorf("reading what the attacker did: %w", err)
	}
	return did, a.command.ProcessState.UserTime() + a.command.ProcessState.SystemTime(), nil
}

// each runs do on a number of workers, again and again until ctx ends. A worker that failed waits a moment.
func (a *attacker) each(ctx context.Context, workers int, do func(worker int) error) {
	var group sync.WaitGroup
	for worker := range workers {
		group.Go(func() {
			for ctx.Err() == nil {
				if err := do(worker); err != nil && ctx.Err() == nil {
					a.failed.Add(1)
					select {
					case <-ctx.Done():
					case <-time.After(10 * time.Millisecond):
					}
				}
			}
		})
	}
	group.Wait()
}

func (a *attacker) dial(ctx context.Context, protocol string) (net.Conn, error) {
	conn, err := (&tls.Dialer{Config: a.configFor(protocol)}).DialContext(ctx, "tcp", a.Address)
	if err != nil {
		return nil, err
	}
	a.connections.Add(1)
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	return conn, nil
}

func namesOf(attacks []attack) []string {
	var names []string
	for _, one := range attacks {
		names = append(names, one.name)
	}
	return names
}
