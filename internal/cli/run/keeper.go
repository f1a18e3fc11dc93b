package run

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/login"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// minimumLeft is how long a credential in a file is good for at least. Clients that use client-go read a token's file
// again every minute.
const minimumLeft = 2 * time.Minute

// keeper renews the credential of a run.
type keeper struct {
	session Session
	writer  *writer
	now     func() time.Time
	retry   time.Duration
	warn    func(format string, args ...any)
	// refused says that the cluster refuses the credential, or that it has expired: it is renewed at once. Nil if nobody
	// finds out.
	refused <-chan struct{}
	last    time.Time // of a try to renew it
}

// run renews the credential until ctx ends. What goes wrong is said once, and tried again: a program that owns the
// terminal is disturbed as little as can be.
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
				return // it never expires, or the program's own plugin renews it
			default:
				wait = never
			}
		}
		if !k.wait(ctx, wait) {
			return
		}
		k.last = k.now()
		renewed, err := k.session.Credential(ctx, credential.Expiry.Sub(k.now())+time.Second) // a better one
		if err == nil {
			err = k.writer.write(renewed)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failing:
			failing = true
			k.warn("the login cannot be renewed, the credential expires at %s: %v",
				credential.Expiry.Local().Format(time.TimeOnly), err)
		case err == nil:
			if failing {
				k.warn("the login is renewed")
			}
			k.warnOfChange(credential, renewed)
			failing, credential = false, renewed
		}
	}
}

// never is longer than any run.
const never = 10 * 365 * 24 * time.Hour

// wait returns when it is time to renew, or when the credential is refused, but then not sooner than after a moment: a
// cluster that refuses each credential is not asked for new ones all the time. It returns false when ctx has ended.
func (k *keeper) wait(ctx context.Context, until time.Duration) bool {
	due := time.After(until)
	select {
	case <-k.refused: // before the last renewal
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

// warnOfChange says when the user is another one than before: programs that have read the kubeconfig act as before.
func (k *keeper) warnOfChange(before, now *login.Credential) {
	if before.Impersonate == nil || now.Impersonate == nil || k.writer.proxy != nil {
		return
	}
	if what, _ := before.Impersonate.Changed(now.Impersonate); what != "" {
		k.warn("%s: restart the program to use that identity", what)
	}
}

// renewAt returns when to renew a credential: in the middle of its life, and when minimumLeft is left of a longer one.
// ok is false for one that is not renewed. proxied says that it is in no file.
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

// certificateLife returns how long the certificate of a credential is valid from the moment of its issue.
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
