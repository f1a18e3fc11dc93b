package run

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/login"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// minimumLeft is how long a credential in a file stays valid at least. client-go rereads token files every minute.
const minimumLeft = 2 * time.Minute

// keeper renews the credential of a run.
type keeper struct {
	session Session
	writer  *writer
	now     func() time.Time
	retry   time.Duration
	warn    func(format string, args ...any)
	// refused signals that the cluster refused the credential, or that it has expired, so that it is renewed at once.
	// Nil without a proxy.
	refused <-chan struct{}
	last    time.Time // last attempt to renew
}

// run renews the credential until ctx ends. It retries after an error and prints it only once, so as not to disturb a
// program that owns the terminal.
func (k *keeper) run(ctx context.Context, credential *login.Credential) {
	failing := false
	for {
		wait := k.retry
		if !failing {
			due, ok := renewAt(credential, k.now(), k.writer.proxy != nil)
			switch {
			case ok:
				wait = due.Sub(k.now())
			case k.writer.proxy == nil:
				return // it never expires, or the plugin renews it
			default:
				wait = never
			}
		}
		if !k.wait(ctx, wait) {
			return
		}
		k.last = k.now()
		renewed, err := k.session.Credential(ctx, credential.Expiry.Sub(k.now())+time.Second) // valid for longer
		if err == nil {
			err = k.writer.write(renewed)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failing:
			failing = true
			k.warn("cannot renew the login (the credential expires at %s): %v",
				credential.Expiry.Local().Format(time.TimeOnly), err)
		case err == nil:
			if failing {
				k.warn("renewed the login")
			}
			k.warnOfChange(credential, renewed)
			failing, credential = false, renewed
		}
	}
}

// never is longer than any run.
const never = 10 * 365 * 24 * time.Hour

// wait waits until it is time to renew, or the credential is refused. After a refusal, it waits at least retry since
// the last attempt, in case the cluster refuses every credential. It returns false when ctx has ended.
func (k *keeper) wait(ctx context.Context, until time.Duration) bool {
	due := time.After(until)
	select {
	case <-k.refused: // from before the last renewal
	default:
	}
	select {
	case <-ctx.Done():
		return false
	case <-due:
		return true
	case <-k.refused:
	}
	select {
	case <-ctx.Done():
		return false
	case <-due:
	case <-time.After(k.last.Add(k.retry).Sub(k.now())):
	}
	return true
}

// warnOfChange warns that the user has changed, because programs that have read the kubeconfig keep the old identity.
func (k *keeper) warnOfChange(before, now *login.Credential) {
	if before.Impersonate == nil || now.Impersonate == nil || k.writer.proxy != nil {
		return
	}
	if what, _ := before.Impersonate.Changed(now.Impersonate); what != "" {
		k.warn("%s: restart the program to use your current identity", what)
	}
}

// renewAt returns when to renew a credential: when minimumLeft is left, or halfway through a shorter life. ok is false
// if it is not renewed. proxied means that the proxy holds it, and no file.
func renewAt(credential *login.Credential, now time.Time, proxied bool) (due time.Time, ok bool) {
	certificate := credential.ClientCertificateData != "" && !proxied
	if credential.Expiry.IsZero() || certificate && !inFile(credential) {
		return time.Time{}, false
	}
	left := credential.Expiry.Sub(now)
	if certificate {
		return now.Add(max(left-leastCertificateLeft, time.Second)), true
	}
	return now.Add(max(left-minimumLeft, left/2, time.Second)), true
}

// certificateLife returns the lifetime of the credential's certificate from its issue.
func certificateLife(credential *login.Credential) time.Duration {
	block, _ := pem.Decode([]byte(credential.ClientCertificateData))
	if block == nil {
		return 0
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return 0
	}
	return certificate.NotAfter.Sub(certificate.NotBefore) - certs.Backdate
}
