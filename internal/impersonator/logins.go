package impersonator

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// maxLogin is how long the body of a TokenCredentialRequest may be. A token is much shorter.
const maxLogin = 64 << 10

// limitLogins bounds how many TokenCredentialRequests are at the API server at a time. Behind each of them a password
// is compared or a token verified, for a client that may be anybody. Connections and users take turns, so that a
// client that guesses passwords does not keep others from logging in.
//
// A turn is for the API server's work alone. The whole body is here before it begins, and it ends when the answer
// begins: a client that sends or reads slowly holds up only itself.
func limitLogins(next http.Handler, logins *work, group string, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		if info, ok := request.RequestInfoFrom(ctx); !ok || !isLogin(info, group) || info.Verb != "create" {
			next.ServeHTTP(w, req)
			return
		}
		if err := readLogin(w, req); err != nil {
			writeStatus(w, req, s, err)
			return
		}
		turn, err := logins.begin(askerOf(ctx))
		if err != nil {
			writeStatus(w, req, s, statusUnanswered(err, "no login is possible"))
			return
		}
		defer turn.done()
		if err := turn.Wait(ctx); err != nil {
			return // the client has left
		}
		state := stateFrom(ctx)
		state.login, state.loginGroup = turn, group
		next.ServeHTTP(w, req)
	})
}

// isLogin is true for TokenCredentialRequests.
func isLogin(info *request.RequestInfo, group string) bool {
	return info.IsResourceRequest && info.APIGroup == group && info.Resource == "tokencredentialrequests" &&
		info.Subresource == ""
}

// readLogin reads the body, and puts what it read into its place.
func readLogin(w http.ResponseWriter, req *http.Request) error {
	if req.Body == nil || req.Body == http.NoBody {
		return nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxLogin))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("a TokenCredentialRequest may have %d bytes", maxLogin))
	case err != nil:
		return apierrors.NewBadRequest("reading the request body: " + bounded(err.Error()))
	}
	req.TransferEncoding = nil
	req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return nil
}
