package logs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

// output is a concurrency-safe buffer.
type output struct {
	mu      sync.Mutex
	written bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.written.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.written.String()
}

// logTo returns a context with a logger, and a function that returns its lines: level, message, value of "object".
func logTo(t *testing.T, level slog.Level, wrap func(logr.Logger) logr.Logger) (context.Context, func() []string) {
	t.Helper()
	out := &output{}
	inner := slog.NewJSONHandler(out, &slog.HandlerOptions{Level: level})
	logger := wrap(logr.FromSlogHandler(NewHandler(inner, -2)))
	return logr.NewContext(t.Context(), logger), func() (lines []string) {
		for line := range strings.Lines(out.String()) {
			var entry struct {
				Level, Msg, Object string
				Marked             any `json:"pinniped.level"`
			}
			if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.Marked != nil {
				t.Errorf("%v: %s", err, line)
			}
			lines = append(lines, strings.TrimSpace(entry.Level+" "+entry.Msg+" "+entry.Object))
		}
		return lines
	}
}

func TestLevels(t *testing.T) { //nolint:paralleltest // controller-runtime's logger is global
	plain := func(logger logr.Logger) logr.Logger { return logger }
	through := func(logger logr.Logger) logr.Logger { // as reconcilers get it
		ctrllog.SetLogger(logger)
		return ctrllog.Log
	}
	for name, wrap := range map[string]func(logr.Logger) logr.Logger{"plain": plain, "of controller-runtime": through} {
		ctx, lines := logTo(t, 0, wrap)
		Warn(ctx, "Lost something")
		new(Problem).Log(ctx, slog.LevelError, "Refused everybody", "p")
		logr.FromContextOrDiscard(ctx).Info("Did something")
		want := []string{"WARN Lost something", "ERROR Refused everybody", "INFO Did something"}
		if diff := cmp.Diff(want, lines()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestLibraries has an informer of client-go meet an unavailable API server.
func TestLibraries(t *testing.T) {
	t.Parallel()
	for level, want := range map[slog.Level][]string{slog.LevelInfo: nil, -2: {"DEBUG+2"}} {
		ctx, lines := logTo(t, level, func(logger logr.Logger) logr.Logger { return logger })
		ctx, cancel := context.WithCancel(ctx)
		lists := 0
		away := &cache.ListWatch{
			ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
				if lists++; lists > 2 {
					cancel()
				}
				return nil, errors.New("connection refused")
			},
			WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
				return nil, errors.New("connection refused")
			},
		}
		cache.NewReflectorWithOptions(away, &corev1.Secret{}, cache.NewStore(cache.MetaNamespaceKeyFunc), cache.ReflectorOptions{
			Backoff: &wait.Backoff{Duration: time.Millisecond, Steps: 1},
		}).
			RunWithContext(ctx)
		var levels []string
		for _, line := range lines() {
			if got, _, _ := strings.Cut(line, " "); !slices.Contains(levels, got) {
				levels = append(levels, got)
			}
		}
		if diff := cmp.Diff(want, levels); diff != "" {
			t.Errorf("at %s (-want +got):\n%s\n%s", level, diff, strings.Join(lines(), "\n"))
		}
	}
}

// TestFloods logs library warnings that clients can cause in any number.
func TestFloods(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, lines := logTo(t, 0, func(logger logr.Logger) logr.Logger { return logger })
		handler := logr.ToSlogHandler(logr.FromContextOrDiscard(ctx))
		places := []uintptr{
			reflect.ValueOf(filters.WithRequestDeadline).
				Pointer() +
				1,
			reflect.ValueOf(filters.WithAuthentication).Pointer() + 1,
		}
		for i := range 20 {
			for _, place := range places {
				if err := handler.Handle(ctx, slog.NewRecord(time.Now(), slog.LevelError, "Failed", place)); err != nil {
					t.Fatal(err)
				}
			}
			Warn(ctx, "Lost "+strconv.Itoa(i))
		}
		var want []string
		for i := range 20 {
			if i < SamplesPerPeriod {
				want = append(want, "WARN Failed", "WARN Failed")
			}
			want = append(want, "WARN Lost "+strconv.Itoa(i))
		}
		if diff := cmp.Diff(want, lines()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		time.Sleep(SamplePeriod)
		synctest.Wait()
		if diff := cmp.Diff(append(want, "WARN Left out log lines", "WARN Left out log lines"), lines()); diff != "" {
			t.Errorf("after the period (-want +got):\n%s", diff)
		}
	})
}

// TestLongTexts logs texts of clients.
func TestLongTexts(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 1<<20)
	ctx, lines := logTo(t, 0, func(logger logr.Logger) logr.Logger { return logger })
	logger := logr.FromContextOrDiscard(ctx)
	logger.Info("x", "object", long)
	logger.Info("x", "object", errors.New(long))
	logger.Info(long)
	var none *apierrors.StatusError
	logger.Info("x", "object", error(none))
	const cut = "... (1048576 bytes)"
	for i, line := range lines() {
		if i < 3 && (len(line) > 17<<10 || !strings.HasSuffix(line, cut)) {
			t.Errorf("line %d has %d bytes, and ends with %q", i, len(line), line[max(0, len(line)-30):])
		}
	}
}

func TestSpelling(t *testing.T) {
	t.Parallel()
	ctx, lines := logTo(t, 0, func(logger logr.Logger) logr.Logger { return logger })
	logger := logr.FromContextOrDiscard(ctx)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}}
	for _, object := range []any{
		types.NamespacedName{Namespace: "ns", Name: "s"},
		klog.KObj(secret), klog.KRef("ns", "s"), secret,
		types.NamespacedName{Name: "s"},
		klog.KRef("", "s"), "s",
	} {
		logger.Info("x", "object", object)
	}
	logger.WithValues("object", klog.KObj(secret)).Info("x")
	want := []string{
		"INFO x ns/s",
		"INFO x ns/s",
		"INFO x ns/s",
		"INFO x ns/s",
		"INFO x s",
		"INFO x s",
		"INFO x s",
		"INFO x ns/s",
	}
	if diff := cmp.Diff(want, lines()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
