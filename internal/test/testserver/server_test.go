package testserver

import (
	"bufio"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestKilledPostgresComesBackWithItsData(t *testing.T) {
	t.Parallel()
	s := StartPostgres(t, map[string]string{"max_connections": "12", "application_name": "'mine'"})
	query(t, s.URL(), "CREATE TABLE thing (id int); INSERT INTO thing VALUES (7)")
	if got := query(t, s.URL(), "SHOW max_connections"); got != "12" {
		t.Errorf("max_connections = %s, want 12 as the settings say", got)
	}
	open := session(t, s.URL())
	everyone := family(s.in.running)
	if len(everyone) < 5 {
		t.Errorf("the family of the server is %v, want the postmaster, its helpers and a session", everyone)
	}

	s.Kill()
	for _, pid := range everyone {
		if alive(pid) {
			t.Errorf("process %d of the server survives Kill", pid)
		}
	}
	if line, err := open.ReadString('\n'); err == nil {
		t.Errorf("an open session says %q after Kill, want an error", line)
	}
	if err := psql(s.URL(), "SELECT 1"); err == nil {
		t.Error("a killed server answers")
	}

	s.Start()
	if got := query(t, s.URL(), "SELECT id FROM thing"); got != "7" {
		t.Errorf("row after Kill and Start = %q, want 7", got)
	}
}

func TestStoppedPostgresComesBack(t *testing.T) {
	t.Parallel()
	s := StartPostgres(t, nil)
	query(t, s.URL(), "CREATE TABLE thing (id int)")
	s.Stop()
	if log, err := os.ReadFile(s.in.log()); err != nil || !strings.Contains(string(log), "database system is shut down") {
		t.Errorf("the log does not tell of an orderly end (%v):\n%s", err, s.in.tail())
	}
	s.Start()
	query(t, s.URL(), "SELECT id FROM thing")
}

func TestPausedPostgresAnswersAfterItIsResumed(t *testing.T) {
	t.Parallel()
	s := StartPostgres(t, nil)
	s.Pause()
	answer := make(chan string, 1)
	go func() { answer <- query(t, s.URL(), "SELECT 'here'") }()
	select {
	case got := <-answer:
		t.Errorf("a paused server answers %q", got)
	case <-time.After(300 * time.Millisecond):
		s.Resume()
		if got := <-answer; got != "here" {
			t.Errorf("after Resume = %q, want here", got)
		}
	}
}

func TestWrongSettingFailsWithTheServersOwnWords(t *testing.T) {
	t.Parallel()
	in, err := newPostgres(map[string]string{"no_such_setting": "1"})
	if err == nil {
		_ = in.remove()
	}
	if err == nil || !strings.Contains(err.Error(), `unrecognized configuration parameter "no_such_setting"`) {
		t.Errorf("error = %v, want what PostgreSQL says of the setting", err)
	}
}

func TestKilledMariaDBComesBackWithItsData(t *testing.T) {
	t.Parallel()
	s := StartMariaDB(t, map[string]string{"max-connections": "12", "auto_increment_increment": "2", "innodb-log-file-size": "8M"})
	rows(t, s.URL(), "CREATE TABLE thing (id int PRIMARY KEY)// INSERT INTO thing VALUES (7)")
	settings := "SELECT @@max_connections, @@auto_increment_increment, @@innodb_log_file_size"
	if got, want := rows(t, s.URL(), settings), fmt.Sprintf("12\t2\t%d", 8<<20); got != want {
		t.Errorf("settings = %q, want %q", got, want)
	}
	open := mariaSession(t, s.URL(), "BEGIN// INSERT INTO thing VALUES (8)")
	everyone := family(s.in.running)

	s.Kill()
	for _, pid := range everyone {
		if alive(pid) {
			t.Errorf("process %d of the server survives Kill", pid)
		}
	}
	if line, err := open.ReadString('\n'); err == nil {
		t.Errorf("an open session says %q after Kill, want an error", line)
	}
	if _, err := mariadb(s.URL(), "SELECT 1"); err == nil {
		t.Error("a killed server answers")
	}

	s.Start()
	if got := rows(t, s.URL(), "SELECT id FROM thing"); got != "7" {
		t.Errorf("rows after Kill and Start = %q, want 7, which was committed", got)
	}
}

func TestStoppedMariaDBComesBack(t *testing.T) {
	t.Parallel()
	s := StartMariaDB(t, nil)
	rows(t, s.URL(), "CREATE TABLE thing (id int)")
	s.Stop()
	if log, err := os.ReadFile(s.in.log()); err != nil || !strings.Contains(string(log), "Shutdown complete") {
		t.Errorf("the log does not tell of an orderly end (%v):\n%s", err, s.in.tail())
	}
	s.Start()
	rows(t, s.URL(), "SELECT id FROM thing")
}

func TestPausedMariaDBAnswersAfterItIsResumed(t *testing.T) {
	t.Parallel()
	s := StartMariaDB(t, nil)
	s.Pause()
	answer := make(chan string, 1)
	go func() { answer <- rows(t, s.URL(), "SELECT 'here'") }()
	select {
	case got := <-answer:
		t.Errorf("a paused server answers %q", got)
	case <-time.After(300 * time.Millisecond):
		s.Resume()
		if got := <-answer; got != "here" {
			t.Errorf("after Resume = %q, want here", got)
		}
	}
}

func TestMariaDBAcknowledgesWhatIsOnDiskAsText(t *testing.T) {
	t.Parallel()
	facts := "SELECT @@innodb_flush_log_at_trx_commit, @@character_set_database, @@character_set_server"
	if got := rows(t, MariaDB(t), facts); got != "1\tutf8mb4\tutf8mb4" {
		t.Errorf("%s = %q, want 1 and utf8mb4", facts, got)
	}
}

func TestMariaDBStartsReadOnlyAndAsANode(t *testing.T) {
	t.Parallel()
	s := StartMariaDB(t, map[string]string{"read_only": "ON", "wsrep_on": "ON", "log_bin": "changes", "binlog_format": "ROW"})
	if got := rows(t, s.URL(), "SELECT @@read_only, @@wsrep_on, @@log_bin"); got != "1\t1\t1" {
		t.Errorf("read_only, wsrep_on, log_bin = %q, want 1, as the settings say", got)
	}
}

func TestWrongMariaDBSettingFailsWithTheServersOwnWords(t *testing.T) {
	t.Parallel()
	in, err := newMariaDB(map[string]string{"no_such_setting": "1"}, plain)
	if err == nil {
		_ = in.remove()
	}
	if err == nil || !strings.Contains(err.Error(), "unknown variable 'no_such_setting=1'") {
		t.Errorf("error = %v, want what MariaDB says of the setting", err)
	}
}

// All facts about one RabbitMQ in one test, because each start takes seconds.
func TestKilledRabbitMQComesBackWithItsMessages(t *testing.T) {
	t.Parallel()
	s := StartRabbitMQ(t, map[string]string{"max_message_size": "2048"})
	ch := declare(t, s.URL(), "things")
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	publish(t, ch, "things", "hello")
	everyone := family(s.in.running)

	s.Settle()
	s.Kill()
	for _, pid := range everyone {
		if alive(pid) {
			t.Errorf("process %d of the server survives Kill", pid)
		}
	}
	if _, err := amqp.Dial(s.URL()); err == nil {
		t.Error("a killed server answers")
	}
	s.Start()
	ch = channel(t, s.URL())
	if m, ok, err := ch.Get("things", true); err != nil || !ok || string(m.Body) != "hello" {
		t.Errorf("message after Kill and Start = %q, %v, %v, want hello", m.Body, ok, err)
	}

	s.Pause()
	answer := make(chan error, 1)
	go func() { answer <- speakAMQP(portOf(t, s.URL())) }()
	select {
	case err := <-answer:
		t.Errorf("a paused server answers: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	s.Resume()
	if err := <-answer; err != nil {
		t.Errorf("after Resume: %v", err)
	}

	if err := manage(s.API(), "GET", "/api/queues/waybill/things", ""); err != nil {
		t.Errorf("the queue is not found through API(): %v", err)
	}
	if err := ch.Publish("", "things", false, false, amqp.Publishing{Body: make([]byte, 2049)}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ch.NotifyClose(make(chan *amqp.Error, 1)):
		if err == nil || err.Code != amqp.PreconditionFailed {
			t.Errorf("channel closed with %v, want a message too large as the settings say", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("a message above max_message_size is accepted")
	}

	everyone = family(s.in.running)
	s.Stop()
	for _, pid := range everyone {
		if alive(pid) {
			t.Errorf("process %d of the server survives Stop", pid)
		}
	}
}

func publish(t *testing.T, ch *amqp.Channel, queue, body string) {
	t.Helper()
	sent, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(body)})
	if err != nil {
		t.Fatal(err)
	}
	if !sent.Wait() {
		t.Fatalf("%s was not confirmed", body)
	}
}

func query(t *testing.T, dsn, statement string) string {
	t.Helper()
	path, err := program("psql", postgresPrograms, postgresMissing)
	if err != nil {
		t.Error(err)
		return ""
	}
	out, err := exec.Command(path, "-X", "-At", "-w", "-v", "ON_ERROR_STOP=1", "-c", statement, dsn).CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", statement, err, out)
	}
	return strings.TrimSpace(string(out))
}

func rows(t *testing.T, dsn, statements string) string {
	t.Helper()
	out, err := mariadb(dsn, statements)
	if err != nil {
		t.Errorf("%s: %v", statements, err)
	}
	return out
}

// session opens a session that stays until the server or the test ends, and
// returns its output.
func session(t *testing.T, dsn string) *bufio.Reader {
	t.Helper()
	path, err := program("psql", postgresPrograms, postgresMissing)
	if err != nil {
		t.Fatal(err)
	}
	return stay(t, exec.Command(path, "-X", "-At", "-w", "-c", "SELECT 'open'", "-c", "SELECT pg_sleep(600)", dsn))
}

// mariaSession is the same after statements.
func mariaSession(t *testing.T, dsn, statements string) *bufio.Reader {
	t.Helper()
	path, err := program("mariadb", mariaPrograms, mariaMissing)
	if err != nil {
		t.Fatal(err)
	}
	args, env, err := mariaClient(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, append(args, "--unbuffered", "--delimiter=//", "-e", statements+"// SELECT 'open'// DO SLEEP(600)")...)
	cmd.Env = append(os.Environ(), env...)
	return stay(t, cmd)
}

func stay(t *testing.T, cmd *exec.Cmd) *bufio.Reader {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()
	})
	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); err != nil || line != "open\n" {
		t.Fatalf("session says %q, %v", line, err)
	}
	return lines
}

func portOf(t *testing.T, dsn string) int {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	return n
}
