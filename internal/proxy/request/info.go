package request

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// MaxSelector is the size in bytes up to which a selector is parsed.
const MaxSelector = 512

// selectors are the query parameters that contain selectors.
var selectors = [...]string{"fieldSelector", "labelSelector"}

// maxShownPath limits how many bytes of a path an error shows.
const maxShownPath = 100

// InfoResolver implements the API server's RequestInfoResolver with limits, because it runs before authentication. The
// API server's own resolver parses selectors of any length, which takes 0.8 s and 90 MiB for a header full of labels,
// and logs the whole of a query that it cannot parse. Create one with NewInfoResolver.
type InfoResolver struct {
	factory apirequest.RequestInfoFactory
}

// NewInfoResolver returns a resolver for the paths of Kubernetes: /api/VERSION and /apis/GROUP/VERSION.
func NewInfoResolver() *InfoResolver {
	return &InfoResolver{apirequest.RequestInfoFactory{
		APIPrefixes:          sets.NewString("api", "apis"),
		GrouplessAPIPrefixes: sets.NewString("api"),
	}}
}

// NewRequestInfo returns what the API server's resolver returns, except that it omits selectors longer than
// MaxSelector, and all selectors when a query parameter is invalid. The request then covers more, never less.
//
// The error, for a path without a resource, shows the beginning of the path.
func (r *InfoResolver) NewRequestInfo(req *http.Request) (*apirequest.RequestInfo, error) {
	read := req
	if req.URL.RawQuery != "" {
		read = &http.Request{Method: req.Method, URL: &url.URL{Path: req.URL.Path, RawQuery: relevant(req.URL).Encode()}}
	}
	info, err := r.factory.NewRequestInfo(read)
	if err != nil {
		return nil, fmt.Errorf("the path %.*q names no kind", maxShownPath, req.URL.Path)
	}
	return info, nil
}

// relevant returns the query parameters that affect the request info.
func relevant(u *url.URL) url.Values {
	said, kept := u.Query(), url.Values{}
	if watch, ok := said["watch"]; ok {
		// The first value counts. Any value but "0" and "false" means true, so a long value can be cut.
		kept.Set("watch", watch[0][:min(len(watch[0]), MaxSelector)])
	}
	read := url.Values{}
	for _, name := range selectors {
		switch selector := said.Get(name); {
		case selector == "":
		case len(selector) > MaxSelector:
			said.Del(name)
		default:
			read.Set(name, selector)
		}
	}
	if len(read) == 0 {
		return kept
	}
	var options metainternalversion.ListOptions
	if metainternalversionscheme.ParameterCodec.DecodeParameters(said, metav1.SchemeGroupVersion, &options) == nil {
		maps.Copy(kept, read)
	}
	return kept
}

// LongSelector returns the size in bytes of the longest selector in a query, or 0 when none exceeds MaxSelector.
func LongSelector(u *url.URL) int {
	if len(u.RawQuery) <= MaxSelector {
		return 0
	}
	long, said := 0, u.Query()
	for _, name := range selectors {
		if n := len(said.Get(name)); n > MaxSelector {
			long = max(long, n)
		}
	}
	return long
}
