package kubelet

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// serveLogs sends the container's combined output. It supports follow and tailLines, and timestamps when it does not
// follow; it ignores sinceSeconds, as its pods are young, and refuses all other options.
func (k *Kubelet) serveLogs(w http.ResponseWriter, req *http.Request) {
	container := k.container(w, req)
	if container == nil {
		return
	}
	query := req.URL.Query()
	for name := range query {
		if !slices.Contains([]string{"follow", "tailLines", "sinceSeconds", "timestamps"}, name) {
			http.Error(w, fmt.Sprintf("this node does not know %q", name), http.StatusBadRequest)
			return
		}
	}
	offset := 0
	if text := query.Get("tailLines"); text != "" {
		lines, err := strconv.Atoi(text)
		if err != nil || lines < 0 {
			http.Error(w, fmt.Sprintf("tailLines %q is not a number of lines", text), http.StatusBadRequest)
			return
		}
		written, _, _ := container.log.after(0)
		offset = lastLines(written, lines)
	}
	out := &flushed{w, http.NewResponseController(w)}
	w.WriteHeader(http.StatusOK)
	_ = out.control.Flush()
	if query.Get("follow") == "true" {
		_ = container.log.follow(req.Context(), offset, out) // the client disconnected, or the container ended
		return
	}
	written, _, _ := container.log.after(offset)
	if query.Get("timestamps") == "true" {
		now := []byte(time.Now().Format(time.RFC3339Nano) + " ")
		written = bytes.Join(bytes.SplitAfter(written, []byte("\n")), now)
		written = append(now, bytes.TrimSuffix(written, now)...)
	}
	_, _ = out.Write(written)
}

// lastLines returns the offset of the last lines.
func lastLines(written []byte, lines int) int {
	offset := len(written)
	if lines == 0 {
		return offset
	}
	for range lines {
		offset = bytes.LastIndexByte(written[:max(0, offset-1)], '\n') + 1
	}
	return offset
}

type flushed struct {
	http.ResponseWriter
	control *http.ResponseController
}

func (f *flushed) Write(p []byte) (int, error) {
	n, err := f.ResponseWriter.Write(p)
	if err == nil {
		err = f.control.Flush()
	}
	return n, err
}
