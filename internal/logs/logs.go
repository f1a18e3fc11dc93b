// Package logs gives the agent's log its levels and its spelling. logr, by which everything here logs, knows no
// warnings; and what libraries call an error is mostly something that they try again.
package logs

import (
	"context"
	"log/slog"
	"runtime"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// levelKey marks a line of the agent's own with its level. The handler removes it.
const levelKey = "pinniped.level"

// Warn logs what an operator should know and need not mend at once.
func Warn(ctx context.Context, message string, facts ...any) {
	at(ctx, slog.LevelWarn, message, facts)
}

func at(ctx context.Context, level slog.Level, message string, facts []any) {
	logr.FromContextOrDiscard(ctx).WithCallDepth(2).Info(message, append(slices.Clone(facts), levelKey, level)...)
}

// NewHandler returns a handler that writes with inner. Objects are written as NAMESPACE/NAME. What client-go says goes
// to debug: it tries again by itself, and what that means for users the agent says in its own words. What other
// libraries call an error is a warning. A panic stays an error.
func NewHandler(inner slog.Handler, debug slog.Level) slog.Handler {
	return &handler{inner: inner, debug: debug}
}

type handler struct {
	inner slog.Handler
	debug slog.Level // of the lines of client-go
}

func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.inner.Enabled(ctx, level)
}

func (h *handler) Handle(ctx context.Context, record slog.Record) error {
	level, own := record.Level, false
	var attributes []slog.Attr
	record.Attrs(func(a slog.Attr) bool {
		if set, ok := a.Value.Any().(slog.Level); ok && a.Key == levelKey {
			level, own = set, true
		} else {
			attributes = append(attributes, spelled(a))
		}
		return true
	})
	if !own {
		level = h.levelOf(record)
	}
	if !h.inner.Enabled(ctx, level) {
		return nil
	}
	written := slog.NewRecord(record.Time, level, record.Message, record.PC)
	written.AddAttrs(attributes...)
	return h.inner.Handle(ctx, written)
}

func (h *handler) WithAttrs(attributes []slog.Attr) slog.Handler {
	all := make([]slog.Attr, 0, len(attributes))
	for _, a := range attributes {
		all = append(all, spelled(a))
	}
	return &handler{inner: h.inner.WithAttrs(all), debug: h.debug}
}

func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{inner: h.inner.WithGroup(name), debug: h.debug}
}

// unhandled is what Kubernetes' libraries say of an error that they have nobody to return to. Nearly always it is a
// request that failed and is tried again.
const unhandled = "Unhandled Error"

// levelOf returns the level of a line that does not say it: by the package that logged it.
func (h *handler) levelOf(record slog.Record) slog.Level {
	if record.Level < slog.LevelInfo || record.PC == 0 {
		return record.Level
	}
	frame, _ := runtime.CallersFrames([]uintptr{record.PC}).Next()
	from := func(prefixes ...string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(frame.Function, p) })
	}
	switch {
	case strings.Contains(record.Message, "panic"):
		return record.Level
	case from("k8s.io/client-go/", "k8s.io/apimachinery/", "k8s.io/klog/"), record.Message == unhandled && from("k8s.io/"):
		return h.debug
	case record.Level >= slog.LevelError && from("k8s.io/", "sigs.k8s.io/"):
		return slog.LevelWarn
	}
	return record.Level
}

// spelled writes objects as NAMESPACE/NAME, and as NAME those that are in no namespace.
func spelled(a slog.Attr) slog.Attr {
	var namespace, name string
	switch object := a.Value.Any().(type) {
	case types.NamespacedName:
		namespace, name = object.Namespace, object.Name
	case klog.ObjectRef:
		namespace, name = object.Namespace, object.Name
	case metav1.Object:
		if object == nil {
			return a
		}
		namespace, name = object.GetNamespace(), object.GetName()
	default:
		return a
	}
	if namespace != "" {
		name = namespace + "/" + name
	}
	return slog.String(a.Key, name)
}
