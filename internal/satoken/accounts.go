// Package satoken lets users in with tokens of service accounts, on clusters without a signer for users and without a
// way to the impersonation proxy.
//
// Each user gets a service account of their own, in a namespace that holds nothing else, and a ClusterRole that lets
// this account impersonate exactly this user: the name, the UID, the groups, and the extras of the newest login with
// these groups, without the ID of the token that it logged in with. A login gets a short-lived token of the account
// and the headers with which a client acts as the user. The API server sees, and logs, both.
//
// What keeps this safe:
//
//   - Objects are named by a hash of the authenticator, the user, the UID and the groups, so that one user's objects can
//     never be another's, and no token gains the groups that a later login has proved.
//   - Order: the account, its ClusterRole, its binding, and the token last. Before a token is given, the API server
//     decides by the role as it has to be.
//   - The account says until when tokens of it may live. That is written before a token is requested, and the
//     collector deletes only later than that, and only objects that have not changed since it read them.
//   - The agent does all this as a service account of its own. A ValidatingAdmissionPolicy limits what that one may
//     write to objects of this shape; without the policy, nothing is issued.
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
	// TokenLife is how long a token works: the shortest time for which the API server issues tokens.
	TokenLife = 10 * time.Minute
	// hold is how long an account is kept at least after a login, so that not every login has to write to it.
	hold = time.Hour
	// skew is how far the clocks of API server and replicas may be apart.
	skew = 5 * time.Minute
	// maxTries bounds how often a write is tried again that met another one.
	maxTries = 8
)

// ErrFull means that there are as many accounts as there may be, all of them with tokens that live.
var ErrFull = errors.New("there are too many users with a service account")

// Credential is how a user gets in.
type Credential struct {
	Token   string
	Expiry  time.Time
	Headers map[string][]string // with each request
}

// Accounts makes service accounts for users, and tokens of them. It is safe for concurrent use, also by several
// replicas.
type Accounts struct {
	// Manager is a client with the permissions of the overlay in deploy/: as the accounts' manager.
	Manager kubernetes.Interface
	// Reviewer may create SubjectAccessReviews.
	Reviewer kubernetes.Interface
	// Namespace holds the accounts, and nothing else.
	Namespace string
	// Max is how many accounts there may be at a time.
	Max   int
	Clock clock.PassiveClock

	locks keymutex.KeyMutex
}

// New fills in what callers need not know.
func New(manager, reviewer kubernetes.Interface, namespace string, limit int) *Accounts {
	return &Accounts{
		Manager: manager, Reviewer: reviewer, Namespace: namespace, Max: limit, Clock: clock.RealClock{},
		locks: keymutex.NewHashed(64),
	}
}

// Issue makes sure that the user's objects are right, and returns a token. Two logins of one user take turns, so that
// they do not undo each other's work. With constrained, the role uses constrained impersonation.
func (a *Accounts) Issue(ctx context.Context, user Identity, constrained bool) (*Credential, error) {
	id, err := user.normal()
	if err != nil {
		return nil, err
	}
	name := id.name(a.Namespace)
	a.locks.LockKey(name)
	defer func() { _ = a.locks.UnlockKey(name) }() // it only ever returns nil

	account, err := a.account(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("making a service account for the user: %w", err)
	}
	if err := a.permit(ctx, account, role(account, id, constrained)); err != nil {
		return nil, err
	}
	return a.token(ctx, account, id.headers())
}

// account returns the user's account, which says that tokens may live for long enough.
func (a *Accounts) account(ctx context.Context, id Identity) (*corev1.ServiceAccount, error) {
	accounts, name := a.Manager.CoreV1().ServiceAccounts(a.Namespace), id.name(a.Namespace)
	return retry(func() (*corev1.ServiceAccount, error) {
		now := a.Clock.Now()
		found, err := accounts.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			if err := a.room(ctx); err != nil {
				return nil, err
			}
			return accounts.Create(ctx, account(a.Namespace, id, now.Add(TokenLife+hold)), metav1.CreateOptions{})
		}
		if err != nil {
			return nil, err
		}
		if found.Annotations[usernameAnnotation] != id.Username || found.Annotations[uidAnnotation] != id.UID ||
			found.Annotations[authenticatorAnnotation] != id.Authenticator || found.Labels[NamespaceLabel] != a.Namespace {
			return nil, fmt.Errorf("service account %q was changed, and says that it is another user's", name)
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

// room returns ErrFull when there is no room for another account, not even after what is not used any more is gone.
func (a *Accounts) room(ctx context.Context) error {
	for _, collect := range []bool{true, false} {
		// The namespace holds accounts only, so that the API server can count them without sending them.
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

// token requests a token. Its expiry is known to the account, so that the collector waits for it.
func (a *Accounts) token(
	ctx context.Context,
	account *corev1.ServiceAccount,
	headers map[string][]string,
) (*Credential, error) {
	token, err := a.Manager.CoreV1().ServiceAccounts(a.Namespace).CreateToken(ctx, account.Name,
		&authenticationv1.TokenRequest{
			ObjectMeta: metav1.ObjectMeta{UID: account.UID}, // of this account, and none made since
			Spec:       authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(TokenLife.Seconds()))},
		}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("requesting a token of the user's service account: %w", err)
	}
	expiry := token.Status.ExpirationTimestamp.Time
	if expiry.After(until(account)) {
		return nil, fmt.Errorf("the API server issues tokens that live until %s, although %s was asked for",
			expiry.UTC().Format(time.RFC3339), TokenLife)
	}
	return &Credential{Token: token.Status.Token, Expiry: expiry, Headers: headers}, nil
}

// retry tries again what met another writer.
func retry[T any](try func() (T, error)) (result T, err error) {
	for range maxTries {
		result, err = try()
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) {
			return result, err
		}
	}
	return result, err
}
