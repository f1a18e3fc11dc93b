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
}

// run renews the credential until ctx ends. What goes wrong is said once, and tried again: a program that owns the
// terminal is disturbed as little as can be.
func (k *keeper) run(ctx context.Context, credential *login.Credential) {
	failing := false
	for {
		wait := k.retry
		if !failing {
			due, ok := renewAt(credential, k.now())
			if !ok {
				return // it never expires, or the program's own plugin renews it
			}
			wait = due.Sub(k.now())
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
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
			k.tell(credential, renewed)
			failing, credential = false, renewed
		}
	}
}

// tell says when the user is another one than before: programs that have read the kubeconfig act as before.
func (k *keeper) tell(before, now *login.Credential) {
	if before.Impersonate == nil || now.Impersonate == nil {
		return
	}
	if what, _ := before.Impersonate.Changed(now.Impersonate); what != "" {
		k.warn("%s: start the program again, so that it acts so", what)
	}
}

// renewAt returns when to renew a credential: in the middle of its life, and when minimumLeft is left of a longer one.
// ok is false for one that is not renewed.
func renewAt(credential *login.Credential, now time.Time) (due time.Time, ok bool) {
	if credential.Expiry.IsZero() || credential.ClientCertificateData != "" && !inFile(credential) {
		return time.Time{}, false
	}
	left := credential.Expiry.Sub(now)
	if credential.ClientCertificateData != "" {
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
