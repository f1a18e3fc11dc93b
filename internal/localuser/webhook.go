package localuser

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/go-logr/logr"
	"golang.org/x/crypto/bcrypt"
	authenticationv1 "k8s.io/api/authentication/v1"
	authenticationv1beta1 "k8s.io/api/authentication/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kubejson "sigs.k8s.io/json"
)

const (
	authenticatePath = "/authenticate"
	reviewKind       = "TokenReview"
	// maxBody is far more than a TokenReview with a username and a password needs.
	maxBody = 64 << 10
)

const (
	patience  = 10 * time.Second // how long a login waits for its comparison
	maxLogins = 100              // waiting or in a comparison
)

// errBusy is the error when too many logins are pending. It is retryable.
var errBusy = errors.New("too many logins at once")

// webhook serves TokenReviews. It limits the number of concurrent password comparisons, because anyone who reaches the
// port can cause one.
type webhook struct {
	users     client.Reader
	namespace string
	unknown   []byte // hash of a random password, so that unknown usernames take as long as known ones
	logins    chan struct{}
	seats     chan struct{}
	log       logr.Logger
}

func newWebhook(users client.Reader, namespace string, parallel int, log logr.Logger) (*webhook, error) {
	unknown, err := bcrypt.GenerateFromPassword([]byte(rand.Text()), bcrypt.DefaultCost)
	if err != nil {
		return nil, fmt.Errorf("hashing a random password: %w", err)
	}
	return &webhook{
		users: users, namespace: namespace, unknown: unknown,
		logins: make(chan struct{}, maxLogins), seats: make(chan struct{}, parallel), log: log,
	}, nil
}

// lookup returns the user with this name, or nil when no valid Secret defines one.
func (h *webhook) lookup(ctx context.Context, name string) *user {
	secret := &corev1.Secret{}
	err := h.users.Get(ctx, client.ObjectKey{Namespace: h.namespace, Name: name}, secret)
	if apierrors.IsNotFound(err) {
		return nil
	}
	var found *user
	if err == nil {
		found, err = parseUser(secret)
	}
	if err != nil {
		h.log.Error(err, "Refused user", "secret", name)
	}
	return found
}

// verify returns the user if the password is right, and nil if it is wrong or there is no such user. It returns errBusy
// when the comparison could not start in time, and the user with an error when the user's groups cannot be read.
func (h *webhook) verify(ctx context.Context, name, password string) (*user, error) {
	// Refused for every username, so that the result does not reveal which users exist.
	if name == "" || strings.TrimSpace(password) == "" {
		return nil, nil //nolint:nilnil // "not authenticated" is not an error
	}
	select {
	case h.logins <- struct{}{}:
		defer func() { <-h.logins }()
	default:
		return nil, errBusy
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case h.seats <- struct{}{}:
		defer func() { <-h.seats }()
	case <-ctx.Done():
		return nil, errBusy
	}
	found, hash := h.lookup(ctx, name), h.unknown
	if found != nil {
		hash = found.hash
	}
	if err := bcrypt.CompareHashAndPassword(hash, []byte(password)); found == nil || err != nil {
		return nil, nil //nolint:nilnil // as above
	}
	return found, found.groupsErr
}

// refusal is a response without a body, and the reason for the log.
type refusal struct {
	code   int
	reason string
}

// ServeHTTP responds to a TokenReview of version v1 or v1beta1 with one of the same version. Other requests get a
// status code and an empty body.
func (h *webhook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer, refused := h.review(w, r)
	if refused != nil {
		h.log.V(2).Info("Refused request", "code", refused.code, "reason", refused.reason)
		switch refused.code {
		case http.StatusMethodNotAllowed:
			w.Header().Set("Allow", http.MethodPost)
		case http.StatusServiceUnavailable:
			w.Header().Set("Retry-After", "1")
		}
		w.WriteHeader(refused.code)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		h.log.V(2).Info("Client disconnected before the response", "reason", err.Error())
	}
}

func (h *webhook) review(w http.ResponseWriter, r *http.Request) (*authenticationv1.TokenReview, *refusal) {
	if refused := checkRequest(r); refused != nil {
		return nil, refused
	}
	asked, refused := readReview(w, r)
	if refused != nil {
		return nil, refused
	}
	name, password, ok := strings.Cut(asked.Spec.Token, ":")
	if !ok {
		return nil, &refusal{http.StatusBadRequest, "the token is not username:password"}
	}
	answer := &authenticationv1.TokenReview{TypeMeta: asked.TypeMeta}
	known, err := h.verify(r.Context(), name, password)
	switch {
	case errors.Is(err, errBusy):
		return nil, &refusal{http.StatusServiceUnavailable, err.Error()}
	case err != nil:
		h.log.Error(err, "Failed to authenticate user", "user", known.name)
		return nil, &refusal{http.StatusInternalServerError, err.Error()}
	case known == nil:
		// The name is not logged: users mistype passwords as names.
		h.log.V(2).Info("Refused credential")
	default:
		h.log.V(2).Info("Authenticated user", "user", known.name)
		answer.Status.Authenticated = true
		answer.Status.User = authenticationv1.UserInfo{Username: known.name, Groups: slices.Clone(known.groups)}
	}
	return answer, nil
}

// checkRequest checks everything but the body.
func checkRequest(r *http.Request) *refusal {
	switch {
	case r.URL.Path != authenticatePath:
		return &refusal{http.StatusNotFound, "the path is not " + authenticatePath}
	case r.Method != http.MethodPost:
		return &refusal{http.StatusMethodNotAllowed, "the method is not POST"}
	case !names(r.Header.Values("Content-Type"), "application/json"):
		return &refusal{http.StatusUnsupportedMediaType, "the content type is not application/json"}
	case !names(r.Header.Values("Accept"), "application/json", "application/*", "*/*"):
		return &refusal{http.StatusUnsupportedMediaType, "the client does not accept application/json"}
	}
	return nil
}

// names reports whether a header that lists media types contains one of the wanted ones, ignoring parameters such as a
// charset.
func names(headers []string, wanted ...string) bool {
	for _, header := range headers {
		for item := range strings.SplitSeq(header, ",") {
			if mediaType, _, err := mime.ParseMediaType(item); err == nil && slices.Contains(wanted, mediaType) {
				return true
			}
		}
	}
	return false
}

// readReview decodes a TokenReview as the API server does. Versions v1 and v1beta1 have the same fields, so one type
// serves both.
func readReview(w http.ResponseWriter, r *http.Request) (*authenticationv1.TokenReview, *refusal) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
		return nil, &refusal{http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is longer than %d bytes", maxBody)}
	}
	if err != nil {
		return nil, &refusal{http.StatusBadRequest, "the body could not be read"}
	}
	review := &authenticationv1.TokenReview{}
	// The error is not logged: it may quote the body.
	if err := kubejson.UnmarshalCaseSensitivePreserveInts(body, review); err != nil {
		return nil, &refusal{http.StatusBadRequest, "the body is not a JSON object with the fields of a TokenReview"}
	}
	versions := []string{authenticationv1beta1.SchemeGroupVersion.String(), authenticationv1.SchemeGroupVersion.String()}
	if !slices.Contains(versions, review.APIVersion) {
		return nil, &refusal{http.StatusBadRequest, "apiVersion is not one of " + strings.Join(versions, ", ")}
	}
	if review.Kind != reviewKind {
		return nil, &refusal{http.StatusBadRequest, "kind is not " + reviewKind}
	}
	return &authenticationv1.TokenReview{
		TypeMeta: metav1.TypeMeta{APIVersion: review.APIVersion, Kind: review.Kind},
		Spec:     authenticationv1.TokenReviewSpec{Token: review.Spec.Token},
	}, nil
}

const (
	passwordHashKey = "passwordHash"
	groupsKey       = "groups"

	// reserved is the prefix of groups that only Kubernetes itself assigns, such as system:masters.
	reserved = "system:"
)

// bcryptHash matches a bcrypt hash: version, cost, 22 characters of salt, 31 characters of hash.
var bcryptHash = regexp.MustCompile(`^\$2[abxy]?\$[0-9]{2}\$[./A-Za-z0-9]{53}$`)

// user is a user as defined by a Secret.
type user struct {
	name   string
	hash   []byte
	groups []string
	// groupsErr is why groups could not be read. A login with the right password then fails with it.
	groupsErr error
}

// parseUser reads a user from a Secret. It returns nil, nil for a Secret that does not define one, and an error, which
// never contains the password hash, for an invalid one.
func parseUser(secret *corev1.Secret) (*user, error) {
	hash := bytes.TrimSpace(secret.Data[passwordHashKey])
	if secret.Name == ServingSecretName || len(hash) == 0 {
		return nil, nil //nolint:nilnil // "no user" is not an error
	}
	if !bcryptHash.Match(hash) {
		return nil, fmt.Errorf("%s is not a bcrypt hash", passwordHashKey)
	}
	found := &user{name: secret.Name, hash: hash}
	found.groups, found.groupsErr = parseGroups(secret.Data[groupsKey])
	for _, group := range found.groups {
		if strings.HasPrefix(group, reserved) {
			return nil, fmt.Errorf("group %q: names that begin with %q are reserved for Kubernetes", group, reserved)
		}
		if strings.ContainsFunc(group, unicode.IsControl) {
			return nil, fmt.Errorf("group %q holds a control character", group)
		}
	}
	return found, nil
}

// parseGroups reads the first line of comma-separated group names. It trims spaces around names.
func parseGroups(list []byte) ([]string, error) {
	record, err := csv.NewReader(bytes.NewReader(list)).Read()
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("reading the comma-separated list in %s: %w", groupsKey, err)
	}
	var groups []string
	for _, name := range record {
		if name = strings.TrimSpace(name); name != "" {
			groups = append(groups, name)
		}
	}
	return groups, nil
}
