package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// resultOf has one load with these ratios, one for each round, and an event delay of as many rounds.
func resultOf(ratios ...float64) *report {
	r := &report{
		Version: shapeVersion,
		Agent:   "v1",
		Rounds:  len(ratios),
		Date:    time.Date(2026, 11, 22, 1, 2, 3, 0, time.UTC),
	}
	var before, after []sample
	for _, ratio := range ratios {
		one := sample{
			requests: 1000, elapsed: time.Second, latencies: []time.Duration{time.Millisecond},
			cpu: processorTimes{apiServer: time.Second},
		}
		before = append(before, one)
		one.elapsed = time.Duration(float64(time.Second) / ratio)
		one.cpu.proxy = time.Duration(float64(time.Second) / ratio)
		after = append(after, one)
	}
	r.addRequests("get", goals{ratio: 0.8}, map[string][]sample{direct: before, proxied: after})
	r.addFigure("events", proxied, figure{name: "delay, p50", unit: "ms", value: ratios[0], rounds: ratios})
	r.finish()
	return r
}

func TestCompare(t *testing.T) {
	t.Parallel()
	low, high := resultOf(0.70, 0.71, 0.72, 0.69, 0.70, 0.71), resultOf(0.80, 0.81, 0.82, 0.79, 0.80, 0.83)
	elsewhere := resultOf(0.80, 0.81, 0.82, 0.79, 0.80, 0.83)
	elsewhere.Machine.Processor = "another"
	for _, test := range []struct {
		name          string
		before, after *report
		want          []string
		not           string
	}{
		{
			"calls a greater ratio and a smaller quotient better, and a longer delay worse", low, high,
			[]string{
				"ratio 0.705 [0.69, 0.72] 0.805 [0.79, 0.83] +14.2% better (p=0.002)",
				"CPU quotient 1.419 [1.389, 1.449] 1.242 [1.205, 1.266] -12.4% better (p=0.002)",
				"events proxied: delay, p50, ms 0.705 [0.69, 0.72] 0.805 [0.79, 0.83] +14.2% WORSE (p=0.002)",
			},
			"too few",
		},
		{"calls a smaller ratio worse", high, low, []string{"-12.4% WORSE (p=0.002)"}, "ratio better"},
		{"shows no difference between a result and itself", low, low, []string{"no difference shown (p=1.000)"}, "better ("},
		{
			"gives no verdict on three rounds", resultOf(0.7, 0.7, 0.7), resultOf(0.9, 0.9, 0.9),
			[]string{"ratio 0.7 0.9 +28.6% too few rounds to tell (3 and 3)"},
			"better",
		},
		{
			"leaves out absolute figures of different machines", low, elsewhere,
			[]string{"The machines or networks differ", "better (p=0.002)"},
			"delay",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			if err := writeComparison(&out, test.before, test.after); err != nil {
				t.Fatal(err)
			}
			got := strings.Join(strings.Fields(out.String()), " ")
			for _, want := range test.want {
				if !strings.Contains(got, want) {
					t.Errorf("want %q in:\n%s", want, out.String())
				}
			}
			if strings.Contains(got, test.not) {
				t.Errorf("%q is in:\n%s", test.not, out.String())
			}
		})
	}
}

// TestCompareKept compares what was kept as JSON, as make bench-compare does.
func TestCompareKept(t *testing.T) {
	t.Parallel()
	kept, err := resultOf(0.7, 0.8).save(filepath.Join(t.TempDir(), "new"))
	if err != nil {
		t.Fatal(err)
	}
	old := resultOf(0.7, 0.8)
	old.Version = 1
	older, err := old.save(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"compares two files", []string{"compare", kept, kept}, exitDone, "LOAD"},
		{"wants two files", []string{"compare", kept, ""}, exitUsage, "make bench-compare OLD="},
		{"refuses another version of the form", []string{"compare", older, kept}, exitFailed, "has version 1 of the form"},
		{"names a file that is missing", []string{"compare", kept, "none.json"}, exitFailed, "none.json"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			if code := run(test.args, &out, &out); code != test.code {
				t.Errorf("want code %d, got %d", test.code, code)
			}
			if !strings.Contains(out.String(), test.want) {
				t.Errorf("want %q in %q", test.want, out.String())
			}
		})
	}
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := resultOf(0.7, 0.8, 0.9).writeMarkdown(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| get | 1000/s, 1.00 ms | 1000 µs | 800/s, 1.00 ms | 0.80 (0.70–0.90) | +0% | 1250 µs | 1.25 | ratio ≥ 0.80 met |",
		"| events | delay, p50 |  | 0.7 ms |  |  |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("want %q in:\n%s", want, out.String())
		}
	}
}
