// Package satoken logs users in with service account tokens, on clusters without a signer for users where the
// impersonation proxy is unreachable.
//
// Each user gets a service account in a dedicated namespace, and a ClusterRole that lets this account impersonate
// exactly this user: name, UID, groups, and the extras of the latest login with these groups, except the ID of its
// token. A login gets a short-lived token of the account and the impersonation headers. The API server sees, and logs,
// both identities.
//
// What keeps this safe:
//
//   - Objects are named by a hash of authenticator, user, UID and groups. Users never share objects, and a token never
//     gains the groups of a later login.
//   - Objects are written in order: account, ClusterRole, binding. A token is issued only after the API server enforces
//     the role.
//   - An annotation of the account says until when its tokens may be valid. It is written before a token is requested.
//     The collector deletes an account only after that time, and only objects that have not changed since it read them.
//   - The agent does all this with a separate service account. A ValidatingAdmissionPolicy restricts what that account
//     can write to objects of this shape; without the policy, nothing is issued.
package satoken

import (
	"context"
	"errors"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	"k8s.io/utils/keymutex"
	"k8s.io/utils/ptr"
)

const (
	// TokenLife is the lifetime of a token: the shortest that the API server supports.
	TokenLife = 10 * time.Minute
	// hold is how long an account is kept at least after a login, so that not every login has to write to it.
	hold = time.Hour
	// skew is the tolerated clock skew between the API server and the replicas.
	skew = 5 * time.Minute
	// maxTries limits how often a write is retried after a conflict.
	maxTries = 8
)

// ErrFull means that the maximum number of accounts exists and all of them may have valid tokens.
var ErrFull = errors.New("too many users have a service account")

// Credential is what a user authenticates with.
type Credential struct {
	Token   string
	Expiry  time.Time
	Headers map[string][]string // to send with each request
}

// Accounts manages the service accounts of users. It is safe for concurrent use, including by several replicas.
type Accounts struct {
	// Manager is a client with the service account of the overlay in deploy/serviceaccounttokens.
	Manager kubernetes.Interface
	// Reviewer is a client that can create SubjectAccessReviews.
	Reviewer kubernetes.Interface
	// Namespace is a namespace for the accounts only.
	Namespace string
	// Max is the maximum number of accounts.
	Max   int
	Clock clock.PassiveClock

	locks keymutex.KeyMutex
}

// New returns Accounts with the real clock.
func New(manager, reviewer kubernetes.Interface, namespace string, limit int) *Accounts {
	return &Accounts{
		Manager: manager, Reviewer: reviewer, Namespace: namespace, Max: limit, Clock: clock.RealClock{},
		locks: keymutex.NewHashed(64),
	}
}

// Issue makes the user's objects correct and returns a token. Logins of the same user on this replica are serialized.
// If constrained is true, the role uses constrained impersonation.
func (a *Accounts) Issue(ctx context.Context, user Identity, constrained bool) (*Credential, error) {
	id, err := user.normal()
	if err != nil {
		return nil, err
	}
	name := id.name(a.Namespace)
	a.locks.LockKey(name)
	defer func() { _ = a.locks.UnlockKey(name) }() // it always returns nil

	account, err := a.account(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("creating the user's service account: %w", err)
	}
	if err := a.permit(ctx, account, role(account, id, constrained)); err != nil {
		return nil, err
	}
	return a.token(ctx, account, id.headers())
}

// account returns the user's account, with an expiry annotation that is far enough in the future.
func (a *Accounts) account(ctx context.Context, id Identity) (*corev1.ServiceAccount, error) {
	accounts, name := a.Manager.CoreV1().ServiceAccounts(a.Namespace), id.name(a.Namespace)
	return retry(func() (*corev1.ServiceAccount, error) {
		now := a.Clock.Now()
		found, err := accounts.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			if err := a.makeSpace(ctx); err != nil {
				return nil, err
			}
			return accounts.Create(ctx, account(a.Namespace, id, now.Add(TokenLife+hold)), metav1.CreateOptions{})
		}
		if err != nil {
			return nil, err
		}
		if found.Annotations[usernameAnnotation] != id.Username || found.Annotations[uidAnnotation] != id.UID ||
			found.Annotations[authenticatorAnnotation] != id.Authenticator || found.Labels[NamespaceLabel] != a.Namespace {
			return nil, fmt.Errorf("service account %q was changed, and is now another user's", name)
		}
		if found.DeletionTimestamp != nil {
			return nil, fmt.Errorf("service account %q is being deleted", name)
		}
		if until(found).After(now.Add(TokenLife + skew)) {
			return found, nil
		}
		changed := found.DeepCopy()
		changed.Annotations[untilAnnotation] = now.Add(TokenLife + hold).UTC().Format(time.RFC3339)
		return accounts.Update(ctx, changed, metav1.UpdateOptions{})
	})
}

// makeSpace returns ErrFull if there is no space for another account, even after unused ones are collected.
func (a *Accounts) makeSpace(ctx context.Context) error {
	for _, collect := range []bool{true, false} {
		// The namespace contains only accounts, so the API server can count them without sending them.
		page, err := a.Manager.CoreV1().ServiceAccounts(a.Namespace).List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return err
		}
		if int64(len(page.Items))+ptr.Deref(page.RemainingItemCount, 0) < int64(a.Max) {
			return nil
		}
		if collect {
			if err := a.Collect(ctx, false); err != nil {
				return err
			}
		}
	}
	return ErrFull
}

// token requests a token. It must expire before the time in the account's annotation, for which the collector waits.
func (a *Accounts) token(
	ctx context.Context,
	account *corev1.ServiceAccount,
	headers map[string][]string,
) (*Credential, error) {
	token, err := a.Manager.CoreV1().ServiceAccounts(a.Namespace).CreateToken(ctx, account.Name,
		&authenticationv1.TokenRequest{
			ObjectMeta: metav1.ObjectMeta{UID: account.UID}, // not of an account recreated since
			Spec:       authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(TokenLife.Seconds()))},
		}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("getting a token for the user's service account: %w", err)
	}
	expiry := token.Status.ExpirationTimestamp.Time
	if expiry.After(until(account)) {
		return nil, fmt.Errorf("the API server issues tokens valid until %s, although %s was requested",
			expiry.UTC().Format(time.RFC3339), TokenLife)
	}
	return &Credential{Token: token.Status.Token, Expiry: expiry, Headers: headers}, nil
}

// retry retries after a conflict with another writer.
func retry[T any](try func() (T, error)) (result T, err error) {
	for range maxTries {
		result, err = try()
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) {
			return result, err
		}
	}
	return result, err
}
