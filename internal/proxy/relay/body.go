package relay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/edge"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

var errUnreadableBody = apierrors.NewBadRequest("the request body could not be read")

// holdBody reads the body, up to edge.MaxHeldBody, so that a body which comes slowly keeps nothing busy at the API server. A
// body that is here as a whole can be sent again when the API server has not processed it (GOAWAY).
func holdBody(req *http.Request, bound request.Body) error {
	if req.Body == nil || req.Body == http.NoBody || req.ContentLength == 0 {
		return nil
	}
	req.Header.Del("Expect") // net/http has told the client to go on, or does so now
	if n := req.ContentLength; n > 0 && n <= edge.MaxHeldBody {
		body := make([]byte, n)
		if _, err := io.ReadFull(req.Body, body); err != nil {
			return fmt.Errorf("reading the request body: %w", err)
		}
		if bound != nil {
			bound.Unbind() // also when its end is not announced yet
		}
		setBody(req, body)
		return nil
	}
	var body bytes.Buffer
	_, err := io.CopyN(&body, req.Body, edge.MaxHeldBody)
	switch {
	case errors.Is(err, io.EOF) && req.ContentLength < 0:
		setBody(req, body.Bytes())
	case err != nil:
		return fmt.Errorf("reading the request body: %w", err)
	default:
		req.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(&body, req.Body), req.Body}
	}
	return nil
}

// setBody gives the request a body that is in memory.
func setBody(req *http.Request, body []byte) {
	req.TransferEncoding, req.ContentLength = nil, int64(len(body))
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	req.Body, _ = req.GetBody()
}
