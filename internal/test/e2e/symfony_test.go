package e2e

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/wayamqp"
	"github.com/waybill-go/waybill/worker"
)

// symfony returns the program of examples/symfony, or fails the test where it cannot run.
func symfony(t *testing.T, s *stack, args ...string) *exec.Cmd {
	t.Helper()
	probe := exec.Command("php", "-r", `require "autoload.php"; new ReflectionExtension("amqp"); new ReflectionClass("Symfony\Component\Messenger\Bridge\Amqp\Transport\AmqpTransport");`)
	probe.Dir = "../../../examples/symfony"
	runnable(t, "Symfony Messenger", "what internal/test/packages.sh names", probe)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "php", append([]string{"app.php"}, args...)...)
	cmd.Dir, cmd.Stderr = probe.Dir, os.Stderr
	cmd.Env = append(os.Environ(), "DATABASE_URL="+s.database, "BROKER_DSN="+s.broker)
	return cmd
}

// lines runs a program of examples/symfony and returns the lines that it prints.
func lines(t *testing.T, cmd *exec.Cmd) []string {
	t.Helper()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	return strings.Fields(string(out))
}

// credits has examples/symfony dispatch, and a relay send it all. It returns the ids.
func credits(t *testing.T, s *stack, times int, accounts ...string) (ids []string) {
	t.Helper()
	s.openAccounts()
	s.exec("CREATE TABLE booking (seq serial, account varchar(255) NOT NULL, balance int NOT NULL)") // a second effect must be visible
	relay := s.patientRelay()
	for _, account := range accounts {
		ids = append(ids, lines(t, symfony(t, s, "credit", account, fmt.Sprint(times)))...)
	}
	s.eventually(patience, "the outbox is empty", func() bool { return s.left() == 0 })
	relay.end()
	return ids
}

func TestSymfonyMessengerDispatchesAndHandlesOnceInOrder(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		s := on.stack(t)
		const times, kept = 50, 40 // a transaction in five is rolled back
		dispatched := credits(t, s, times, accounts[3:]...)
		s.queue("bank")
		for n := range dispatched { // each third comes twice, as killed relays leave them
			m, _, err := s.ch.Get(everyone, true)
			s.must(err)
			copied := amqp.Publishing{MessageId: m.MessageId, Type: m.Type, ContentType: m.ContentType, Timestamp: m.Timestamp, DeliveryMode: m.DeliveryMode, Headers: m.Headers, Body: m.Body}
			for range 1 + n%3/2 {
				s.must(s.ch.Publish("", "bank", true, false, copied))
			}
		}

		// A worker that is killed in the middle: its last message comes again.
		kills, want := 0, len(accounts[3:])*kept
		for booked := 0; booked < want && kills < 50; booked = s.count("SELECT count(*) FROM booking") {
			cmd := symfony(t, s, "book", "bank")
			out, err := cmd.StdoutPipe()
			s.must(err)
			s.must(cmd.Start())
			read := bufio.NewScanner(out)
			late := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() }) // a killed worker's commit may come after the count
			for range min(7+kills, want-booked) {                                     // a line for each booking
				read.Scan()
				late.Reset(2 * time.Second)
			}
			late.Stop()
			s.must(cmd.Process.Kill())
			_ = cmd.Wait()
			kills++
		}
		if kills < 2 {
			t.Errorf("the worker was killed %d times, want that it was in the middle", kills)
		}
		for _, account := range accounts[3:] {
			if got := s.count("SELECT count(*) FROM booking AS b WHERE account = ? AND balance = (SELECT count(*) FROM booking AS a WHERE a.account = b.account AND a.seq <= b.seq)", account); got != kept {
				t.Errorf("%d bookings of %s are in order and came once, want %d", got, account, kept)
			}
		}
		if got := s.count("SELECT count(*) FROM waybill_inbox WHERE handler = 'bank'"); got != want || len(dispatched) != want {
			t.Errorf("%d entries in the inbox of %d messages, want %d", got, len(dispatched), want)
		}
	})
}

func TestOutboxOfSymfonyMessengerWantsATransactionAndKnowsDelays(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		s := on.stack(t)
		cmd := symfony(t, s)
		cmd.Args = []string{"php", "-r", `require "autoload.php";
			use Symfony\Component\Messenger\{Envelope, Stamp\DelayStamp};
			$db = Doctrine\DBAL\DriverManager::getConnection((new Doctrine\DBAL\Tools\DsnParser(["postgres" => "pdo_pgsql", "mysql" => "pdo_mysql"]))->parse(getenv("DATABASE_URL")));
			$json = new Symfony\Component\Serializer\Serializer([new Symfony\Component\Serializer\Normalizer\ObjectNormalizer()], [new Symfony\Component\Serializer\Encoder\JsonEncoder()]);
			$outbox = new Waybill\Messenger\OutboxTransport($db, "events", new Waybill\Messenger\Names(["x" => stdClass::class]), $json);
			$message = new Envelope(new stdClass(), [new DelayStamp(3600 * 1000)]);
			try { $outbox->send($message); } catch (Exception $e) { echo get_class($e), "\n"; }
			$db->transactional(fn () => $outbox->send($message));`}
		const refused = `Symfony\Component\Messenger\Exception\TransportException`
		if got := lines(t, cmd); !slices.Equal(got, []string{refused}) {
			t.Errorf("outside of a transaction: %q, want it refused", got)
		}
		soon := map[*kind]string{&postgresKind: "now() + interval '59 minutes'", &mariaDBKind: "UTC_TIMESTAMP(6) + INTERVAL 59 MINUTE"}[on]
		if got := s.count("SELECT count(*) FROM waybill_delayed WHERE due_at > " + soon); got != 1 || s.left() != 0 {
			t.Errorf("%d messages wait for an hour, %d are in the outbox, want 1 and none", got, s.left())
		}
	})
}

// A message of a name that Symfony does not know becomes a dead letter of its failure transport, and is handled from there.
func TestSymfonyMessengerKeepsWhatItCannotDecode(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		s := on.stack(t)
		ids := credits(t, s, 1, "acc-7")
		cmd := symfony(t, s, "book", everyone)
		cmd.Env = append(cmd.Env, "NAMES=none")
		s.must(cmd.Start())
		s.eventually(patience, "the message is in the failure transport", func() bool {
			var n int // the table is made with the first message
			return s.one("SELECT count(*) FROM messenger_messages", &n) == nil && n == 1
		})
		s.must(cmd.Process.Signal(syscall.SIGTERM))
		_ = cmd.Wait()
		if got := lines(t, symfony(t, s, "book-failed")); !slices.Equal(got, []string{"acc-7", "1"}) {
			t.Errorf("handled %q from the failure transport, want the message", got)
		}
		if got := s.count("SELECT count(*) FROM waybill_inbox WHERE dedup_key = ?", ids[0]); got != 1 {
			t.Errorf("%d entries of message %s in the inbox, want 1: its id is kept", got, ids[0])
		}
	})
}

func TestSymfonyMessengerRetriesUnderTheSameID(t *testing.T) {
	s := postgresKind.stack(t)
	s.must(s.ch.ExchangeDeclare("delays", "direct", true, false, false, false, nil)) // of Messenger's retries
	ids := credits(t, s, 1, "acc-7")
	cmd := symfony(t, s, "book", everyone)
	cmd.Env = append(cmd.Env, "FAILURES=2")
	s.must(cmd.Start())
	s.eventually(patience, "the third attempt succeeds", func() bool { return s.count("SELECT count(*) FROM booking") == 1 })
	s.must(cmd.Process.Signal(syscall.SIGTERM))
	_ = cmd.Wait()
	if got := s.count("SELECT count(*) FROM waybill_inbox WHERE dedup_key = ?", ids[0]); got != 1 {
		t.Errorf("%d entries of message %s in the inbox, want 1", got, ids[0])
	}
}

func TestWorkerHandlesWhatSymfonyMessengerPublishes(t *testing.T) {
	s := postgresKind.stack(t)
	s.queue("from-symfony")
	sent := lines(t, symfony(t, s, "publish", "from-symfony", "20"))
	bus := waybill.NewBus("bank")
	var handled []string
	waybill.HandleRaw(bus, "bank", "account.credited", func(ctx context.Context, m waybill.RawMessage) error {
		id, _ := waybill.Last[waybill.MessageID](waybill.EnvelopeFrom(ctx))
		handled = append(handled, id.String())
		if want := fmt.Sprintf(`{"account":"acc-7","balance":%d}`, len(handled)); string(m.Body) != want || m.Key != "acc-7" {
			t.Errorf("handled %s of key %q, want %s", m.Body, m.Key, want)
		}
		return nil
	})
	from, err := wayamqp.NewConsumer(wayamqp.Config{URL: s.broker, Queue: "from-symfony"})
	s.must(err)
	w, err := worker.New(bus, from, worker.Config{Limit: len(sent), Concurrency: 1, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	s.must(err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s.must(w.Run(ctx))
	s.must(from.Close())
	if !slices.Equal(handled, sent) {
		t.Errorf("handled %v, want what was sent, %v", handled, sent)
	}
}
