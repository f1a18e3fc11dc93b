package relay

import (
	"bytes"
	"errors"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/listener"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

var errUnreadableBody = apierrors.NewBadRequest("the request body could not be read")

// holdBody reads the body, up to listener.MaxHeldBody, so that a slow body occupies nothing at the API server. here is
// true when the whole body is in memory: it can then be sent again if the API server has not processed it (GOAWAY). It
// removes the limit bound in that case.
func holdBody(req *http.Request, bound request.Body) (here bool, err error) {
	if req.Body == nil || req.Body == http.NoBody || req.ContentLength == 0 {
		return true, nil
	}
	req.Header.Del("Expect") // net/http sends 100 Continue itself
	var body bytes.Buffer
	most := int64(listener.MaxHeldBody)
	if req.ContentLength > 0 {
		most = min(most, req.ContentLength)
		body.Grow(int(most) + bytes.MinRead) // in one allocation
	}
	_, err = io.CopyN(&body, req.Body, most)
	switch {
	case err != nil && (req.ContentLength > 0 || !errors.Is(err, io.EOF)):
		return false, errUnreadableBody
	case err == nil && req.ContentLength != most:
		req.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(&body, req.Body), req.Body}
		return false, nil
	}
	bound.Unbind() // even if the end of the body was not announced yet
	req.TransferEncoding, req.ContentLength = nil, int64(body.Len())
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body.Bytes())), nil }
	req.Body, err = req.GetBody()
	return true, err
}
