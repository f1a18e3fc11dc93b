package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/pinniped-toolkit/pinniped/test/bench/recording"
)

//go:embed testdata/mixture.jsonl
var mixtureFile []byte

// mixtureGroup may do everything, as those did who were recorded.
const mixtureGroup = "mixture"

// initialEventsEnd is in the bookmark after the objects with which a watch that lists begins.
const initialEventsEnd = "k8s.io/initial-events-end"

// measureMixture replays what real clients asked for, in their order. Writes are dry runs, so every turn finds the same
// objects: those that the clients had made before they removed them.
func measureMixture(ctx context.Context, w *world, r *report) error {
	recorded, err := recording.Read(bytes.NewReader(mixtureFile))
	if err != nil {
		return err
	}
	configs, err := w.newUser(mixtureGroup)
	if err != nil {
		return err
	}
	clients, err := clientsOf(configs, w.options.Clients, style{})
	if err != nil {
		return err
	}
	requests, err := w.stage(ctx, clients[direct], recorded)
	if err != nil {
		return fmt.Errorf("preparing the recording: %w", err)
	}
	return inTurn(ctx, w, r, "mixture", goals{}, func(ctx context.Context, way string, d time.Duration) (sample, error) {
		return loop{
			workers: w.options.Workers,
			whole:   len(requests),
			call: func(ctx context.Context, worker, i int) (int64, error) {
				return clients[way].do(ctx, worker, requests[i%len(requests)])
			},
		}.run(
			ctx,
			w,
			d,
		)
	})
}

// stage makes the objects of a recording, and its requests as they are replayed.
func (w *world) stage(ctx context.Context, c *client, recorded []recording.Request) ([]request, error) {
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: mixtureGroup},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: mixtureGroup}},
	}
	if _, err := w.admin.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	there := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: recording.Namespace}}
	if _, err := w.admin.CoreV1().Namespaces().Create(ctx, there, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	allowed := get("/api/v1/namespaces/" + recording.Namespace)
	if err := poll(ctx, "the role binding", func() error { _, err := c.do(ctx, 0, allowed); return err }); err != nil {
		return nil, err
	}
	s := &stage{client: c}
	for i, one := range recorded {
		if err := s.make(ctx, one); err != nil {
			return nil, fmt.Errorf("request %d, %s %s: %w", i+1, one.Method, one.URI, err)
		}
	}
	var requests []request
	for i, one := range recorded {
		replayed, err := s.replayed(ctx, one)
		if err != nil {
			return nil, fmt.Errorf("request %d, %s %s, which was answered with %d when it was recorded: %w",
				i+1, one.Method, one.URI, one.Status, err)
		}
		requests = append(requests, replayed)
	}
	return requests, nil
}

// stage turns recorded requests into those that are replayed.
type stage struct{ client *client }

func isWrite(one recording.Request) bool {
	return one.Method != http.MethodGet && !strings.HasPrefix(one.URI, "/apis/authorization.k8s.io/")
}

// make does what a recorded request did, unless it removed something.
func (s *stage) make(ctx context.Context, one recording.Request) error {
	if !isWrite(one) || one.Method == http.MethodDelete || one.Status >= http.StatusBadRequest {
		return nil
	}
	r := asRecorded(one)
	var err error
	if r.body, err = s.body(ctx, one, func(object metav1.Object) { object.SetUID("") }); err != nil {
		return err
	}
	_, err = s.client.do(ctx, 0, r)
	return err
}

// replayed is a request that can be made again and again. It was made once when this returns.
func (s *stage) replayed(ctx context.Context, one recording.Request) (request, error) {
	r := asRecorded(one)
	address, err := url.Parse(r.path)
	if err != nil {
		return r, err
	}
	query := address.Query()
	query.Del("hash") // of the API server's own OpenAPI document; another hash is answered with a redirect
	if isWrite(one) {
		query.Set("dryRun", "All")
		r.body, err = s.body(ctx, one, func(object metav1.Object) {
			object.SetUID("")
			if one.Method == http.MethodPost { // of its own name there is one already
				object.SetName(object.GetName() + "-again")
			}
		})
		if err != nil {
			return r, err
		}
	}
	if query.Get("watch") != "" {
		if query.Get("sendInitialEvents") == "true" {
			r.until = []byte(initialEventsEnd)
		} else {
			query.Del("resourceVersion") // a version of another cluster
			r.headOnly = true
		}
	}
	address.RawQuery = query.Encode()
	r.path = address.RequestURI()
	if one.Status == http.StatusNotModified { // the client had an answer in its cache
		r.want = http.StatusOK
		answer, err := s.client.open(ctx, 0, r)
		if err != nil {
			return r, err
		}
		_ = answer.Body.Close()
		for validator, question := range map[string]string{"ETag": "If-None-Match", "Last-Modified": "If-Modified-Since"} {
			if value := answer.Header.Get(validator); value != "" {
				r.headers.Set(question, value)
			}
		}
		r.want, r.orWant = http.StatusNotModified, http.StatusOK // the answer may change at any time
	}
	// What was not there yet when it was recorded is there now.
	made := one.Method == http.MethodPatch && one.Status == http.StatusCreated
	if made || one.Status == http.StatusNotFound {
		r.want = http.StatusOK
	}
	_, err = s.client.do(ctx, 0, r)
	return r, err
}

func asRecorded(one recording.Request) request {
	r := request{method: one.Method, path: one.URI, want: one.Status, headers: http.Header{}}
	for name, value := range map[string]string{"Accept": one.Accept, "Content-Type": one.ContentType} {
		if value != "" {
			r.headers.Set(name, value)
		}
	}
	if one.Gzip {
		r.headers.Set("Accept-Encoding", "gzip")
	}
	r.body = one.Body()
	return r
}

// body is that of a write to the objects as they are now: with the present version where one was given, and changed by
// edit. A patch stays as it was.
func (s *stage) body(ctx context.Context, one recording.Request, edit func(metav1.Object)) ([]byte, error) {
	body := one.Body()
	if one.Method == http.MethodPatch || len(body) == 0 {
		return body, nil
	}
	if one.ContentType == acceptProtobuf {
		object, kind, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("reading its body: %w", err)
		}
		if err := s.edit(ctx, one, object, edit); err != nil {
			return nil, err
		}
		object.GetObjectKind().SetGroupVersionKind(*kind)
		var changed bytes.Buffer
		err = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(object, &changed)
		return changed.Bytes(), err
	}
	object := &unstructured.Unstructured{}
	if err := json.Unmarshal(body, &object.Object); err != nil {
		return nil, fmt.Errorf("reading its body: %w", err)
	}
	if err := s.edit(ctx, one, object, edit); err != nil {
		return nil, err
	}
	return json.Marshal(object.Object)
}

func (s *stage) edit(
	ctx context.Context,
	one recording.Request,
	object runtime.Object,
	edit func(metav1.Object),
) error {
	if one.Method == http.MethodDelete {
		switch options := object.(type) {
		case *metav1.DeleteOptions:
			options.DryRun = []string{metav1.DryRunAll}
		case *unstructured.Unstructured:
			options.Object["dryRun"] = []any{metav1.DryRunAll}
		default:
			return fmt.Errorf("its body is a %T", object)
		}
		return nil
	}
	meta, ok := object.(metav1.Object)
	if !ok {
		return fmt.Errorf("its body is a %T", object)
	}
	if one.Method == http.MethodPut {
		version, err := s.versionOf(ctx, one.URI)
		if err != nil {
			return err
		}
		meta.SetResourceVersion(version)
	}
	edit(meta)
	return nil
}

// versionOf is the present resource version of an object.
func (s *stage) versionOf(ctx context.Context, uri string) (string, error) {
	path, _, _ := strings.Cut(uri, "?")
	answer, err := s.client.open(ctx, 0, get(path))
	if err != nil {
		return "", err
	}
	defer answer.Body.Close() //nolint:errcheck // it was read to its end
	var found metav1.PartialObjectMetadata
	if err := json.NewDecoder(answer.Body).Decode(&found); err != nil {
		return "", fmt.Errorf("reading the present object: %w", err)
	}
	return found.ResourceVersion, nil
}
