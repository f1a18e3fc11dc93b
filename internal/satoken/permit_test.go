package satoken

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// reviewsOnce fakes an API server that denies one access review and does not respond to the next.
type reviewsOnce struct{ asked int }

// RoundTrip implements http.RoundTripper.
func (r *reviewsOnce) RoundTrip(req *http.Request) (*http.Response, error) {
	if r.asked++; r.asked > 1 {
		<-req.Context().Done()
		return nil, req.Context().Err()
	}
	const denied = `{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","status":{"allowed":false}}`
	return &http.Response{
		StatusCode: http.StatusCreated, Header: http.Header{"Content-Type": {"application/json"}}, Request: req,
		Body: io.NopCloser(strings.NewReader(denied)),
	}, nil
}

// TestNoEffectIsSaid times out during a review. The error is that of the review before.
func TestNoEffectIsSaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := &reviewsOnce{}
		client, err := kubernetes.NewForConfigAndClient(&rest.Config{QPS: -1}, &http.Client{Transport: api})
		if err != nil {
			t.Fatal(err)
		}
		err = (&Accounts{Reviewer: client}).waitForEffect(t.Context(), &corev1.ServiceAccount{}, permission{}, true)
		if !errors.Is(err, errNoEffect) || api.asked != 2 {
			t.Errorf("want %q after two reviews, got %v after %d", errNoEffect, err, api.asked)
		}
	})
}
