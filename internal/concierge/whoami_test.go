package concierge

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	identityv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/identity/v1alpha1"
	loginv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/login/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
	"github.com/pinniped-toolkit/pinniped/test/testkit/same"
)

var loginResource = schema.GroupResource{Group: "login.concierge.pinniped.dev", Resource: "tokencredentialrequests"}

func TestWhoAmIRequest(t *testing.T) {
	t.Parallel()
	extra := map[string][]string{"Example.com/X": {"2", "1"}}
	ann := &user.DefaultInfo{Name: "ann", UID: "7", Groups: []string{"b", "a"}, Extra: extra}
	asAnn := genericapirequest.WithUser(t.Context(), ann)
	for _, test := range []struct {
		name     string
		ctx      context.Context //nolint:containedctx // an input of the test
		object   runtime.Object
		options  *metav1.CreateOptions
		validate func(context.Context, runtime.Object) error
		want     identityv1alpha1.KubernetesUserInfo
		code     int32 // of the error
		message  string
	}{
		{
			name: "echoes the user", ctx: authenticator.WithAudiences(asAnn, authenticator.Audiences{"x"}),
			want: identityv1alpha1.KubernetesUserInfo{
				User: identityv1alpha1.UserInfo{
					Username: "ann", UID: "7", Groups: []string{"b", "a"}, Extra: map[string]identityv1alpha1.ExtraValue{"Example.com/X": {"2", "1"}},
				},
				Audiences: []string{"x"},
			},
		},
		{
			name: "leaves out what is not there", ctx: genericapirequest.WithUser(t.Context(), &user.DefaultInfo{Name: "bob"}),
			want: identityv1alpha1.KubernetesUserInfo{User: identityv1alpha1.UserInfo{Username: "bob"}},
		},
		{name: "refuses another kind", ctx: asAnn, object: &corev1.Pod{}, code: 400, message: "not a WhoAmIRequest"},
		{
			name: "refuses a dry run", ctx: asAnn, options: &metav1.CreateOptions{DryRun: []string{"All"}}, code: 422,
			message: "dryRun",
		},
		{name: "refuses a namespace", ctx: genericapirequest.WithNamespace(asAnn, "ns"), code: 400, message: "namespace is " +
			"not allowed on WhoAmIRequest: ns"},
		{name: "refuses what admission refuses", ctx: asAnn, validate: func(context.Context, runtime.Object) error {
			return apierrors.NewForbidden(loginResource, "", errors.New("by policy"))
		}, code: 403, message: "by policy"},
		{name: "knows nothing without a user", ctx: t.Context(), code: 500, message: "no user info on request"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			object := test.object
			if object == nil {
				object = &identityv1alpha1.WhoAmIRequest{ObjectMeta: metav1.ObjectMeta{Name: "given"}}
			}
			got, err := newWhoAmIRequests().Create(test.ctx, object, test.validate, test.options)
			if test.code != 0 {
				var status apierrors.APIStatus
				if !errors.As(err, &status) || status.Status().Code != test.code ||
					!strings.Contains(status.Status().Message, test.message) {
					t.Errorf("want %d and %q, got %v", test.code, test.message, err)
				}
				return
			}
			must.Do(t, err)
			want := &identityv1alpha1.WhoAmIRequest{Status: identityv1alpha1.WhoAmIRequestStatus{KubernetesUserInfo: test.want}}
			same.Values(t, "", runtime.Object(want), got)
		})
	}
	t.Run("shares nothing with the user", func(t *testing.T) {
		t.Parallel()
		caller := &user.DefaultInfo{Name: "ann", Groups: []string{"a"}, Extra: map[string][]string{"x": {"1"}}}
		info := describe(caller)
		info.Groups[0], info.Extra["x"][0] = "changed", "changed"
		want := &user.DefaultInfo{Name: "ann", Groups: []string{"a"}, Extra: map[string][]string{"x": {"1"}}}
		same.Values(t, "", want, caller)
	})
}

func TestSchemeConvertsWithoutOtherTypes(t *testing.T) {
	t.Parallel()
	groups := apis.GroupsFor("example.com")
	scheme := must.Get(newServerScheme(groups))(t)
	object := &loginv1alpha1.TokenCredentialRequest{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
	object.SetGroupVersionKind(groups.Login.WithKind("TokenCredentialRequest"))
	version := schema.GroupVersion{Group: groups.Login.Group, Version: runtime.APIVersionInternal}
	internal := must.Get(scheme.ConvertToVersion(object, version))(t)
	if kind := internal.GetObjectKind().GroupVersionKind(); !kind.Empty() {
		t.Errorf("want no kind on the internal version, got %s", kind)
	}
	wire := must.Get(scheme.ConvertToVersion(internal, groups.Login))(t)
	same.Values(t, "", runtime.Object(object), wire)
	var copied loginv1alpha1.TokenCredentialRequest
	if err := scheme.Convert(object, &copied, nil); err != nil || copied.Name != "x" {
		t.Errorf("got %v, error %v", copied, err)
	}
}

func TestKeepFrontProxyConnection(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		status int
		client bool // whether the client presents a certificate
		proto  int
		want   string
	}{
		{"keeps the front proxy's connection", 201, true, 2, ""},
		{"keeps it after a refusal", 403, true, 2, ""},
		{"keeps it when nothing is said", 0, true, 2, ""},
		{"closes that of a wrong certificate", 401, true, 2, "close"},
		{"closes that of an unknown client", 201, false, 2, "close"},
		{"leaves HTTP/1.1 alone", 201, true, 1, "close"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			handler := keepFrontProxyConnection(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Connection", "close")
				if test.status != 0 {
					w.WriteHeader(test.status)
					_, _ = w.Write([]byte("x"))
				}
			}))
			recorder := &recordingWriter{header: http.Header{}}
			request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "https://x/", nil)
			request.ProtoMajor = test.proto
			if test.client {
				request.TLS.PeerCertificates = append(request.TLS.PeerCertificates, nil)
			}
			handler.ServeHTTP(recorder, request)
			if recorder.sent == nil {
				recorder.sent = recorder.header.Clone()
			}
			if got := recorder.sent.Get("Connection"); got != test.want {
				t.Errorf("want %q, got %q", test.want, got)
			}
		})
	}
}

// recordingWriter is an HTTP/2 response that records the header when it is sent.
type recordingWriter struct {
	header, sent http.Header
}

func (r *recordingWriter) Header() http.Header { return r.header }
func (r *recordingWriter) WriteHeader(int)     { r.sent = r.header.Clone() }
func (r *recordingWriter) Flush()              {}
func (r *recordingWriter) Write(p []byte) (int, error) {
	if r.sent == nil {
		r.WriteHeader(http.StatusOK)
	}
	return len(p), nil
}
func (r *recordingWriter) CloseNotify() <-chan bool { return nil }

func TestChoosePlugins(t *testing.T) {
	t.Parallel()
	served := func(resources ...string) func(string) bool {
		return func(resource string) bool { return slices.Contains(resources, resource) }
	}
	webhooks := []string{"mutatingwebhookconfigurations", "validatingwebhookconfigurations"}
	run, unserved := choosePlugins(admissionPlugins(), []string{"MutatingAdmissionWebhook"},
		served(append(webhooks, "mutatingadmissionpolicies")...))
	got := [][]string{run, unserved}
	want := [][]string{
		{"NamespaceLifecycle", "ValidatingAdmissionWebhook"},
		{"MutatingAdmissionPolicy", "ValidatingAdmissionPolicy"},
	}
	same.Values(t, "", want, got)
	if err := ValidateAdmissionPlugins([]string{"NamespaceLifecycle", "MutatingAdmissionPolicy"}); err != nil {
		t.Error(err)
	}
	if err := ValidateAdmissionPlugins([]string{"AlwaysDeny"}); err == nil ||
		!strings.Contains(err.Error(), `"AlwaysDeny"; known: NamespaceLifecycle`) {
		t.Errorf("got %v", err)
	}
}
