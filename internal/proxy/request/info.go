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

// MaxSelector is how many bytes a selector may have to be read.
const MaxSelector = 512

// The parameters that are selectors.
var selectors = [...]string{"fieldSelector", "labelSelector"}

// maxShownPath is how many bytes of a path an error shows.
const maxShownPath = 100

// InfoResolver implements the RequestInfoResolver of the API server. It reads what a request is about before the client
// is authenticated, and so limits the work: the API server's own resolver parses selectors of any length, which takes
// 0.8 s and 90 MiB for a header full of labels, and logs all of a query that it cannot parse. NewInfoResolver makes one.
type InfoResolver struct {
	factory apirequest.RequestInfoFactory
}

// NewInfoResolver returns a resolver of the paths of Kubernetes: /api/VERSION and /apis/GROUP/VERSION.
func NewInfoResolver() *InfoResolver {
	return &InfoResolver{apirequest.RequestInfoFactory{
		APIPrefixes:          sets.NewString("api", "apis"),
		GrouplessAPIPrefixes: sets.NewString("api"),
	}}
}

// NewRequestInfo returns what the API server's resolver returns. But selectors are left out when they are longer than
// MaxSelector, or when a parameter of the query is bad: then the request is about more, never about less.
//
// The error, of a path that names no kind, shows the beginning of the path.
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

// relevant returns the parameters that decide what a request is about.
func relevant(u *url.URL) url.Values {
	said, kept := u.Query(), url.Values{}
	if watch, ok := said["watch"]; ok {
		// The first counts. All but "0" and "false" are a yes, and so are the beginnings of those that are longer.
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

// LongSelector returns how many bytes the longest selector in a query has, and 0 when none has more than MaxSelector.
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
