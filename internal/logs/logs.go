// Package logs sets the levels and the format of the agent's log. logr has no warnings, and most errors that libraries
// log are retried.
package logs

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// levelKey marks a line of the agent itself with its level. The handler removes it.
const levelKey = "pinniped.level"

// Warn logs what an operator should know but need not fix at once.
func Warn(ctx context.Context, message string, facts ...any) {
	at(ctx, slog.LevelWarn, message, facts)
}

func at(ctx context.Context, level slog.Level, message string, facts []any) {
	logr.FromContextOrDiscard(ctx).WithCallDepth(2).Info(message, append(slices.Clone(facts), levelKey, level)...)
}

// NewHandler returns a handler that writes to inner. It formats objects as NAMESPACE/NAME. Lines of client-go get the
// level debug: client-go retries by itself, and the agent logs what a failure means for users. Errors of other
// libraries become warnings. A panic stays an error.
//
// Clients can cause any number of library warnings, so at most SamplesPerPeriod from one place in the code are written
// in each SamplePeriod. Long texts are truncated.
func NewHandler(inner slog.Handler, debug slog.Level) slog.Handler {
	return &handler{inner: inner, debug: debug, libraries: &sync.Map{}}
}

type handler struct {
	inner     slog.Handler
	debug     slog.Level // of client-go's lines
	libraries *sync.Map  // *samples of their warnings, by place in the code
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
	from := origin(record.PC)
	if !own {
		level = h.levelOf(record, from)
	}
	if !h.inner.Enabled(ctx, level) || level >= slog.LevelWarn && isKubernetes(from) && !h.passes(ctx, record) {
		return nil
	}
	written := slog.NewRecord(record.Time, level, cut(record.Message), record.PC)
	written.AddAttrs(attributes...)
	return h.inner.Handle(ctx, written)
}

// passes reports whether to write a warning of a library, or whether there were too many from that place.
func (h *handler) passes(ctx context.Context, record slog.Record) bool {
	found, ok := h.libraries.Load(record.PC)
	if !ok {
		found, _ = h.libraries.LoadOrStore(record.PC, &samples{})
	}
	ctx = context.WithoutCancel(ctx)
	return found.(*samples).pass(func(count int) {
		summary := slog.NewRecord(time.Now(), slog.LevelWarn, leftOut, 0)
		summary.AddAttrs(slog.String("message", cut(record.Message)), slog.Int("count", count))
		_ = h.inner.Handle(ctx, summary) // an error of the log cannot be logged
	})
}

func (h *handler) WithAttrs(attributes []slog.Attr) slog.Handler {
	all := make([]slog.Attr, 0, len(attributes))
	for _, a := range attributes {
		all = append(all, spelled(a))
	}
	return &handler{inner: h.inner.WithAttrs(all), debug: h.debug, libraries: h.libraries}
}

func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{inner: h.inner.WithGroup(name), debug: h.debug, libraries: h.libraries}
}

// unhandled is the message of Kubernetes' libraries for an error that they cannot return. Nearly always it is a failed
// request that is retried.
const unhandled = "Unhandled Error"

// levelOf returns the level of a library's line, by the function that logged it.
func (h *handler) levelOf(record slog.Record, from string) slog.Level {
	switch {
	case record.Level < slog.LevelInfo, strings.Contains(record.Message, "panic"):
		return record.Level
	case isOf(from, "k8s.io/client-go/", "k8s.io/apimachinery/", "k8s.io/klog/"),
		record.Message == unhandled && isOf(from, "k8s.io/"):
		return h.debug
	case record.Level >= slog.LevelError && isKubernetes(from):
		return slog.LevelWarn
	}
	return record.Level
}

// origin returns the name of the function at pc, or "" if unknown.
func origin(pc uintptr) string {
	if pc == 0 {
		return ""
	}
	frame, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	return frame.Function
}

func isKubernetes(function string) bool { return isOf(function, "k8s.io/", "sigs.k8s.io/") }

func isOf(function string, packages ...string) bool {
	return slices.ContainsFunc(packages, func(p string) bool { return strings.HasPrefix(function, p) })
}

// Truncate shortens text to at most n bytes, with "…" at the end, and cuts no character in two.
func Truncate(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n-len("…")], "") + "…"
}

// maxText is how many bytes of a text are written. It fits a stack.
const maxText = 16 << 10

func cut(text string) string {
	if len(text) <= maxText {
		return text
	}
	return fmt.Sprintf("%s... (%d bytes)", text[:maxText], len(text))
}

// spelled formats objects as NAMESPACE/NAME, or NAME without a namespace. It truncates texts.
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
	case string:
		return slog.String(a.Key, cut(object))
	case error:
		if v := reflect.ValueOf(object); v.Kind() == reflect.Pointer && v.IsNil() {
			return a
		}
		return slog.String(a.Key, cut(object.Error()))
	default:
		return a
	}
	if namespace != "" {
		name = namespace + "/" + name
	}
	return slog.String(a.Key, name)
}
