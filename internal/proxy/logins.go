package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/cache"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/clock"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

const (
	// maxLogin is how long the body of a TokenCredentialRequest may be: a token of the length that a bearer token may
	// have, and what stands around it.
	maxLogin = identity.MaxToken + 8<<10
	// maxLoginAnswer is how much of the response is read to find out whether there is a credential in it. Answers without
	// one are short.
	maxLoginAnswer = 1 << 20
	// abandonedLogin is how long a login goes on whose client has left.
	abandonedLogin = identity.ReviewTimeout
	// A login that got a credential is remembered for goodLoginFor; maxGoodLogins are remembered, by a keyed hash that
	// decides about turns only. Credentials work for five minutes.
	goodLoginFor  = 15 * time.Minute
	maxGoodLogins = 4096
)

// limitLogins bounds how many TokenCredentialRequests are at the API server at a time. Behind each of them a password
// is compared or a token verified, for a client that may be anybody. Connections and users take turns, so that a
// client that guesses passwords does not keep others from logging in.
//
// A turn is for the API server's work alone. The whole body is here before it begins, and it ends when the response
// begins: a client that sends or reads slowly holds up only itself. A login that has a turn goes on when its client has
// left, as the comparison of its password does: otherwise a client that leaves at once would cause one after the other.
//
// A login that was good a short time ago does not stand behind those of unauthenticated clients.
func limitLogins(
	next http.Handler,
	logins *flowcontrol.Controller,
	clk clock.PassiveClock,
	group string,
	s runtime.NegotiatedSerializer,
) http.Handler {
	good, seed := cache.NewLRUExpireCacheWithClock(maxGoodLogins, clk), maphash.MakeSeed()
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		if info, ok := apirequest.RequestInfoFrom(ctx); !ok || !identity.IsLogin(info, group) || info.Verb != "create" {
			next.ServeHTTP(w, req)
			return
		}
		body, err := readLogin(w, req)
		if err != nil {
			request.WriteStatus(w, req, s, err)
			return
		}
		state := request.From(ctx)
		key := maphash.Bytes(seed, body)
		who, subFlow := state.Asker()
		var turn *flowcontrol.Permit
		// Many clients may share a token: those for whom there is no room wait like others.
		if _, known := good.Get(key); known {
			turn, _ = logins.Enqueue(
				flowcontrol.Flow{Address: "good"},
				flowcontrol.Cost{Resource: flowcontrol.Login, SubFlow: key},
			)
		}
		if turn == nil {
			turn, err = logins.Enqueue(who, flowcontrol.Cost{Resource: flowcontrol.Login, SubFlow: subFlow})
		}
		if err != nil {
			request.WriteStatus(w, req, s, request.StatusUnanswered(ctx, err, "no login is possible"))
			return
		}
		defer turn.Release()
		if err := turn.Wait(ctx); err != nil {
			request.WriteStatus(w, req, s, request.ErrClientLeft)
			return
		}
		state.Login = &request.Login{Group: group, Sent: turn.Release, Answered: func(res *http.Response) {
			if res.StatusCode != http.StatusCreated || res.Body == nil {
				return
			}
			if state.LoginFailed = !hasCredential(res); !state.LoginFailed {
				good.Add(key, true, goodLoginFor)
			}
		}}
		ctx, cancel := outlive(ctx, abandonedLogin)
		defer cancel()
		next.ServeHTTP(w, req.WithContext(ctx))
	})
}

// outlive returns a context that ends some time after ctx.
func outlive(ctx context.Context, after time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(after, cancel) })
	return longer, func() {
		stop()
		cancel()
	}
}

// readLogin reads the body, and puts what it read into its place.
func readLogin(w http.ResponseWriter, req *http.Request) ([]byte, error) {
	if req.Body == nil || req.Body == http.NoBody {
		return nil, nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxLogin))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, apierrors.NewRequestEntityTooLargeError(
			fmt.Sprintf("a TokenCredentialRequest may have %d bytes", maxLogin),
		)
	case err != nil:
		return nil, apierrors.NewBadRequest("reading the request body: " + request.Bounded(err.Error()))
	}
	req.TransferEncoding = nil
	req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return body, nil
}

// hasCredential finds out whether there is a credential in the response to a login, and leaves the response as it is.
// One that cannot be read here, as the client asked for another encoding than JSON, counts as a failure.
func hasCredential(res *http.Response) bool {
	answer, _ := io.ReadAll(io.LimitReader(res.Body, maxLoginAnswer)) // an error comes again
	res.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(answer), res.Body), res.Body}
	var login struct {
		Status struct {
			Credential *struct{} `json:"credential"`
		} `json:"status"`
	}
	err := json.Unmarshal(answer, &login)
	return len(answer) == maxLoginAnswer || err == nil && login.Status.Credential != nil
}
