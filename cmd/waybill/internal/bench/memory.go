package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// memory measures the memory of a process that drains opt.Rows messages to the
// broker, against one that drains a hundredth of them.
func memory(ctx context.Context, opt Options) (_ []Result, err error) {
	broker, err := newBroker(opt)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, broker.close()) }()
	p, err := newBackend(ctx, opt)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	var peaks []float64
	for _, n := range []int{max(opt.Rows/100, 1), opt.Rows} {
		opt.say("memory: loading %d rows", n)
		if err := loadAll(ctx, p, rows{first: 1, n: n, keys: opt.Keys}, outboxTable); err != nil {
			return nil, err
		}
		peak, err := drainPeak(ctx, p, broker, opt, n)
		if err != nil {
			return nil, err
		}
		opt.say("memory: %.1f MiB at the most while %d messages were relayed", peak, n)
		peaks = append(peaks, peak)
	}
	factor := peaks[1] / peaks[0]
	return []Result{{
		Case: fmt.Sprintf("memory of waybill relay, %d rows against %d", opt.Rows, max(opt.Rows/100, 1)), Database: p.database(), Keys: opt.Keys,
		Workers: opt.Workers, Ordering: "strict", Ratio: factor, Min: factor, Max: factor, Rounds: 1, Buckets: opt.buckets(), Rows: opt.Rows,
		Growth: &Growth{Unit: "MiB", From: peaks[0], To: peaks[1], Factor: factor, MaxTo: 64},
	}}, nil
}

// drainPeak runs the process, takes n messages out of the queue meanwhile and
// returns the most memory that was resident, in MiB.
func drainPeak(ctx context.Context, p backend, b *broker, opt Options, n int) (_ float64, err error) {
	dir, err := os.MkdirTemp("", "waybill-bench-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file := filepath.Join(dir, "waybill.yaml")
	text := "database: ${WAYBILL_BENCH_DATABASE}\ntransports: { default: { dsn: \"${WAYBILL_BENCH_BROKER}\" } }\noutbox: { to: default }\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, opt.Drain[0], append(opt.Drain[1:], "--workers", strconv.Itoa(opt.Workers), "--config", file)...)
	cmd.Env = append(os.Environ(), "WAYBILL_BENCH_DATABASE="+withOption(opt.DatabaseDSN, p.option()), "WAYBILL_BENCH_BROKER="+withOption(opt.BrokerDSN, "exchange="+b.name))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	arrived := make(chan error, 1)
	go func() { arrived <- b.arrived(ctx, n, true) }()
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	peak, tick := 0.0, time.NewTicker(20*time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-exited:
			if err != nil {
				return 0, errors.Join(fmt.Errorf("%s: %w: %s", opt.Drain[0], err, stderr.Bytes()), stopped(cancel, arrived))
			}
			if err := <-arrived; err != nil {
				return 0, err
			}
			if peak == 0 {
				return 0, errors.New("the memory of a process is in /proc/PID/status, as VmHWM: this system has none")
			}
			return peak, nil
		case <-tick.C:
			if now, ok := highWater(cmd.Process.Pid); ok {
				peak = now
			}
		}
	}
}

// stopped cancels the count of arrivals and waits for its end.
func stopped(cancel func(), arrived <-chan error) error {
	cancel()
	if err := <-arrived; !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// highWater returns the most memory that was resident in a process so far, in
// MiB. The kernel's other figure, of getrusage, begins with that of the parent.
func highWater(pid int) (mib float64, ok bool) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, false
	}
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	figure, _, _ := strings.Cut(after, " kB")
	kib, err := strconv.Atoi(strings.TrimSpace(figure))
	return float64(kib) / 1024, err == nil
}

// withOption adds an option to a DSN.
func withOption(dsn, option string) string {
	if strings.Contains(dsn, "?") {
		return dsn + "&" + option
	}
	return dsn + "?" + option
}
