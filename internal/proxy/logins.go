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
	// maxLogin limits the body of a TokenCredentialRequest, in bytes: a token of the maximum length, and the object
	// around it.
	maxLogin = identity.MaxToken + 8<<10
	// maxLoginResponse limits how much of the response is searched for a credential. Responses without one are short.
	maxLoginResponse = 1 << 20
	// abandonedLogin is how long a login continues after its client disconnected.
	abandonedLogin = identity.ReviewTimeout
	// A successful login is cached for goodLoginFor, up to maxGoodLogins, by a keyed hash that is only used for
	// queuing. Credentials are valid for five minutes.
	goodLoginFor  = 15 * time.Minute
	maxGoodLogins = 4096
)

// limitLogins limits how many TokenCredentialRequests are at the API server at a time. Each one verifies a password or
// a token, for a client that may be unauthenticated. Users and connections are queued fairly, so that a client that
// guesses passwords does not delay the logins of others.
//
// A seat is only for the API server's work. It is acquired after the whole body is read, and released when the response
// begins: a slow client only delays itself. A login with a seat continues when its client disconnects, because the
// verification of its password does, too: otherwise a client could start one after the other by disconnecting.
//
// A login that succeeded recently is not queued behind those of unauthenticated clients.
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
		who, subFlow := state.Flow()
		var permit *flowcontrol.Permit
		// Many clients may share a token: those that get no permit here are queued like others.
		if _, known := good.Get(key); known {
			permit, _ = logins.Enqueue(
				flowcontrol.Flow{Address: "good"},
				flowcontrol.Cost{Resource: flowcontrol.Login, SubFlow: key},
			)
		}
		if permit == nil {
			permit, err = logins.Enqueue(who, flowcontrol.Cost{Resource: flowcontrol.Login, SubFlow: subFlow})
		}
		if err != nil {
			request.WriteStatus(w, req, s, request.StatusUndecided(ctx, err, "cannot log in"))
			return
		}
		defer permit.Release()
		if err := permit.Wait(ctx); err != nil {
			request.WriteStatus(w, req, s, request.ErrClientLeft)
			return
		}
		state.Login = &request.Login{Group: group, Sent: permit.Release, Responded: func(res *http.Response) {
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

// outlive returns a context that ends the duration after after ctx.
func outlive(ctx context.Context, after time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(after, cancel) })
	return longer, func() {
		stop()
		cancel()
	}
}

// readLogin reads the whole body and replaces it with a buffer.
func readLogin(w http.ResponseWriter, req *http.Request) ([]byte, error) {
	if req.Body == nil || req.Body == http.NoBody {
		return nil, nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxLogin))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, apierrors.NewRequestEntityTooLargeError(
			fmt.Sprintf("the maximum is %d bytes", maxLogin),
		)
	case err != nil:
		return nil, apierrors.NewBadRequest("reading the request body: " + request.Bounded(err.Error()))
	}
	req.TransferEncoding = nil
	req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return body, nil
}

// hasCredential reports whether the response to a login has a credential, and leaves the response unchanged. A response
// in any encoding but JSON counts as a failure.
func hasCredential(res *http.Response) bool {
	content, _ := io.ReadAll(io.LimitReader(res.Body, maxLoginResponse)) // the next read returns the error again
	res.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(content), res.Body), res.Body}
	var login struct {
		Status struct {
			Credential *struct{} `json:"credential"`
		} `json:"status"`
	}
	err := json.Unmarshal(content, &login)
	return len(content) == maxLoginResponse || err == nil && login.Status.Credential != nil
}
