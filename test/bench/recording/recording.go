// Package recording is the form in which requests of real clients are kept: one JSON object a line, in the order in
// which they were made. The program record makes such a file, and bench replays it.
package recording

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// Namespace is where the clients work.
const Namespace = "mixture"

// Request is one request of a client, and the code with which it was answered. Credentials are not in it.
type Request struct {
	Client      string `json:"client"`
	Method      string `json:"method"`
	URI         string `json:"uri"`
	Accept      string `json:"accept,omitempty"`
	Gzip        bool   `json:"gzip,omitempty"` // the client asked for compression
	ContentType string `json:"contentType,omitempty"`
	Text        string `json:"text,omitempty"`   // the body, if it is text
	Binary      []byte `json:"binary,omitempty"` // the body otherwise
	Status      int    `json:"status"`
}

// Body returns the request's body.
func (r *Request) Body() []byte {
	if r.Text != "" {
		return []byte(r.Text)
	}
	return r.Binary
}

// SetBody keeps a body in the form that is easier to read.
func (r *Request) SetBody(body []byte) {
	r.Text, r.Binary = "", nil
	if utf8.Valid(body) {
		r.Text = string(body)
	} else {
		r.Binary = body
	}
}

// Read reads a recording.
func Read(in io.Reader) ([]Request, error) {
	var requests []Request
	decoder := json.NewDecoder(in)
	for {
		var one Request
		err := decoder.Decode(&one)
		if errors.Is(err, io.EOF) {
			return requests, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading a recording, request %d: %w", len(requests)+1, err)
		}
		requests = append(requests, one)
	}
}

// Write writes a recording.
func Write(out io.Writer, requests []Request) error {
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	for _, one := range requests {
		if err := encoder.Encode(one); err != nil {
			return fmt.Errorf("writing a recording: %w", err)
		}
	}
	return nil
}
