package bench

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// A Budget is the CPU time that a message, or a transaction of dispatch, takes of each
// process, in microseconds of user and system time. Unlike a rate it depends little on
// what else the machine does.
type Budget struct {
	Client   float64 `json:"client_us"`
	Database float64 `json:"database_us"`
	Broker   float64 `json:"broker_us"` // 0 without one
}

// A Meter reads the CPU time of the benchmark and of its servers, those with the processes
// that they start. It needs /proc of Linux, and servers on this machine.
type Meter struct {
	processes []int           // of benchmark, database and broker; 0 without a broker
	used      []time.Duration // by the side that runs
}

// NewMeter finds the processes that listen on the ports of two DSNs; broker may be empty.
func NewMeter(database, broker string) (*Meter, error) {
	m := &Meter{processes: []int{os.Getpid(), 0, 0}, used: make([]time.Duration, 3)}
	for i, dsn := range []string{database, broker} {
		if dsn == "" {
			continue
		}
		u, err := url.Parse(dsn)
		if err != nil {
			return nil, errors.New("the port in a DSN cannot be read") // the error of Parse has the password
		}
		port := u.Port()
		if port == "" {
			port = cmp.Or(map[string]string{"mysql": "3306", "amqp": "5672", "amqps": "5671"}[u.Scheme], "5432")
		}
		if m.processes[i+1], err = listener(port); err != nil {
			return nil, err
		}
	}
	_, err := m.read()
	return m, err
}

// clock starts to measure time and, with a meter, CPU time. stop returns the time.
func (o Options) clock() (stop func() time.Duration) {
	start, m := time.Now(), o.Meter
	if m == nil {
		return func() time.Duration { return time.Since(start) }
	}
	before, wrong := m.read()
	return func() time.Duration {
		took := time.Since(start)
		after, err := m.read()
		for i := range after {
			m.used[i] += after[i] - before[i]
		}
		if errors.Join(wrong, err) != nil {
			clear(m.used) // a server has ended: no budget
		}
		return took
	}
}

// perMessage returns what was used since the last call, divided by done.
func (m *Meter) perMessage(done int) (b Budget) {
	if m == nil || done == 0 {
		return b
	}
	for i, us := range []*float64{&b.Client, &b.Database, &b.Broker} {
		*us = float64(m.used[i].Microseconds()) / float64(done)
	}
	clear(m.used)
	return b
}

// medianBudget returns the medians of rounds, or nil if nothing was measured.
func medianBudget(rounds []Budget) *Budget {
	var all [3][]float64
	for _, b := range rounds {
		all[0], all[1], all[2] = append(all[0], b.Client), append(all[1], b.Database), append(all[2], b.Broker)
	}
	b := Budget{median(all[0]), median(all[1]), median(all[2])}
	if b == (Budget{}) {
		return nil
	}
	return &b
}

// read returns the CPU times so far. A process that has ended counts in the times of the
// one that started it.
func (m *Meter) read() (times []time.Duration, err error) {
	times = make([]time.Duration, len(m.processes))
	parents, used, own := map[int]int{}, map[int]time.Duration{}, time.Duration(0)
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		line, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		pid, parent, cpu, ended, err := parseStat(line)
		if err != nil {
			return nil, err
		}
		parents[pid], used[pid] = parent, cpu+ended
		if pid == os.Getpid() {
			own = cpu
		}
	}
	for i, root := range m.processes {
		if _, ok := used[root]; !ok && root != 0 {
			return nil, fmt.Errorf("process %d has ended", root)
		}
		for pid, cpu := range used {
			for up := pid; root != 0 && up != 0; up = parents[up] {
				if up == root {
					times[i] += cpu
					break
				}
			}
		}
	}
	times[0] = own
	return times, err
}

// parseStat reads a line of /proc/PID/stat, with the times of the process and of ended
// children in hundredths of a second.
func parseStat(line []byte) (pid, parent int, cpu, ended time.Duration, err error) {
	wrong := fmt.Errorf("/proc/PID/stat: %q", line)
	end := bytes.LastIndexByte(line, ')') // of the name, which may hold anything
	if end < 0 {
		return 0, 0, 0, 0, wrong
	}
	fields := strings.Fields(string(line[end+1:]))
	number, _, _ := strings.Cut(string(line), " ")
	if pid, err = strconv.Atoi(number); err != nil || len(fields) < 15 {
		return 0, 0, 0, 0, wrong
	}
	parent, err = strconv.Atoi(fields[1])
	for i, of := range []*time.Duration{&cpu, &cpu, &ended, &ended} { // utime, stime, cutime, cstime
		ticks, bad := strconv.Atoi(fields[11+i])
		*of, err = *of+time.Duration(ticks)*10*time.Millisecond, errors.Join(err, bad)
	}
	if err != nil {
		return 0, 0, 0, 0, wrong
	}
	return pid, parent, cpu, ended, nil
}

// listener returns the process that listens on a TCP port of this machine.
func listener(port string) (pid int, err error) {
	n, err := strconv.Atoi(port)
	if err != nil {
		return 0, fmt.Errorf("port %q is no number", port)
	}
	sockets := map[string]bool{}
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		lines, err := os.ReadFile(file)
		if err != nil && file == "/proc/net/tcp" {
			return 0, err
		}
		for line := range strings.Lines(string(lines)) { // sl local_address rem_address st ... uid timeout inode
			f := strings.Fields(line)
			if len(f) > 9 && f[3] == "0A" && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", n)) {
				sockets["socket:["+f[9]+"]"] = true
			}
		}
	}
	files, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		if to, err := os.Readlink(file); err != nil || !sockets[to] {
			continue
		}
		found, err := strconv.Atoi(strings.Split(file, "/")[2])
		if err == nil && (pid == 0 || found < pid) { // children inherit the socket
			pid = found
		}
	}
	if pid == 0 {
		return 0, fmt.Errorf("no process that this user may see listens on port %s of this machine", port)
	}
	return pid, nil
}
