package request

import (
	"context"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// maxShown is how much of what a client sent is repeated in an error.
const maxShown = 128

// Unlogged is for requests with a token in their body: at its highest levels, client-go logs bodies.
func Unlogged(ctx context.Context) context.Context { return klog.NewContext(ctx, logr.Discard()) }

// Bounded cuts a text that came from outside to a length that fits into a log line.
func Bounded(text string) string {
	const most = 512
	if len(text) > most {
		return text[:most] + "..."
	}
	return text
}

// Shown cuts a text that a client sent to a length that fits into an error.
func Shown(text string) string {
	if len(text) > maxShown {
		return text[:maxShown] + "..."
	}
	return text
}
