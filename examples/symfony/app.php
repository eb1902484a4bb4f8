<?php

// A shop and its bank in one program, wired by hand; a Symfony application has these lines in its configuration (README.md).
//
//   php app.php credit ACCOUNT TIMES    credits in transactions that dispatch account.credited to the outbox; every fifth is rolled back
//   php app.php book QUEUE              handles account.credited of a queue until SIGTERM: one row of booking for each
//   php app.php book-failed             the same of the failure transport, until it is empty
//   php app.php publish QUEUE TIMES     sends account.credited to a queue, without an outbox
//
// DATABASE_URL is postgres://... or mysql://..., BROKER_DSN is Messenger's amqp://...; NAMES=none forgets all names, FAILURES=2 has two attempts fail.
declare(strict_types=1);

use Doctrine\DBAL\Connection;
use Doctrine\DBAL\DriverManager;
use Doctrine\DBAL\Tools\DsnParser;
use Psr\Container\ContainerInterface;
use Symfony\Component\EventDispatcher\EventDispatcher;
use Symfony\Component\Messenger\Bridge\Amqp\Transport\AmqpTransportFactory;
use Symfony\Component\Messenger\Bridge\Doctrine\Transport as DoctrineTransport;
use Symfony\Component\Messenger\Envelope;
use Symfony\Component\Messenger\Event\WorkerRunningEvent;
use Symfony\Component\Messenger\EventListener\SendFailedMessageForRetryListener;
use Symfony\Component\Messenger\EventListener\SendFailedMessageToFailureTransportListener;
use Symfony\Component\Messenger\Handler\HandlersLocator;
use Symfony\Component\Messenger\MessageBus;
use Symfony\Component\Messenger\Middleware\HandleMessageMiddleware;
use Symfony\Component\Messenger\Middleware\SendMessageMiddleware;
use Symfony\Component\Messenger\Retry\MultiplierRetryStrategy;
use Symfony\Component\Messenger\Transport\Sender\SendersLocator;
use Symfony\Component\Messenger\Transport\Serialization\PhpSerializer;
use Symfony\Component\Messenger\Transport\TransportInterface;
use Symfony\Component\Messenger\Worker;
use Symfony\Component\Serializer\Encoder\JsonEncoder;
use Symfony\Component\Serializer\Normalizer\ObjectNormalizer;
use Symfony\Component\Serializer\Serializer;
use Waybill\Messenger as Waybill;

require __DIR__.'/autoload.php';

final class AccountCredited implements Waybill\Keyed
{
    public function __construct(public readonly string $account, public readonly int $balance)
    {
    }

    public function partitionKey(): string
    {
        return $this->account;
    }
}

/** Services by name, as a locator of Symfony has them. */
final class Services implements ContainerInterface
{
    public function __construct(private readonly array $services)
    {
    }

    public function get(string $id): mixed
    {
        return $this->services[$id];
    }

    public function has(string $id): bool
    {
        return isset($this->services[$id]);
    }
}

final class App
{
    public readonly Connection $db;
    private readonly Serializer $json;
    private readonly Waybill\Names $names;
    private int $failures;

    public function __construct()
    {
        $this->failures = (int) getenv('FAILURES');
        $params = (new DsnParser(['postgres' => 'pdo_pgsql', 'mysql' => 'pdo_mysql']))->parse(getenv('DATABASE_URL'));
        $this->db = DriverManager::getConnection($params + ['charset' => 'pdo_mysql' === $params['driver'] ? 'utf8mb4' : 'utf8']);
        $this->json = new Serializer([new ObjectNormalizer()], [new JsonEncoder()]);
        $this->names = new Waybill\Names('none' === getenv('NAMES') ? [] : ['account.credited' => AccountCredited::class]);
    }

    public function credit(string $account, int $times): void
    {
        $outbox = (new Waybill\OutboxTransportFactory($this->db, $this->names, $this->json))->createTransport('waybill://events', [], new PhpSerializer());
        $locator = new SendersLocator([AccountCredited::class => ['outbox']], new Services(['outbox' => $outbox]));
        $bus = new MessageBus([new SendMessageMiddleware($locator)]);
        for ($i = 1; $i <= $times; ++$i) {
            $this->db->beginTransaction();
            $this->db->executeStatement('UPDATE account SET balance = balance + 1 WHERE id = ?', [$account]);
            $balance = (int) $this->db->fetchOne('SELECT balance FROM account WHERE id = ?', [$account]);
            $envelope = $bus->dispatch(new AccountCredited($account, $balance));
            if (0 === $i % 5) {
                $this->db->rollBack();
                continue;
            }
            $this->db->commit();
            echo $envelope->last(Waybill\MessageId::class)->id, "\n";
        }
    }

    public function publish(string $queue, int $times): void
    {
        $transport = $this->broker($queue);
        for ($i = 1; $i <= $times; ++$i) {
            $id = Waybill\MessageId::new();
            $transport->send(new Envelope(new AccountCredited('acc-7', $i), [$id]));
            echo $id->id, "\n";
        }
    }

    public function book(string $queue): void
    {
        $this->work(['broker' => $this->broker($queue)], static fn (WorkerRunningEvent $e) => null);
    }

    public function bookFailed(): void
    {
        $this->work(['failed' => $this->failed()], static fn (WorkerRunningEvent $e) => $e->isWorkerIdle() && $e->getWorker()->stop());
    }

    private function booking(AccountCredited $m): void
    {
        $this->db->executeStatement('INSERT INTO booking (account, balance) VALUES (?, ?)', [$m->account, $m->balance]);
        echo "{$m->account} {$m->balance}\n";
        if ($this->failures-- > 0) {
            throw new RuntimeException('the bank is closed'); // Messenger sends the message again, after a delay
        }
    }

    /** @param array<string, TransportInterface> $transports */
    private function work(array $transports, callable $afterEach): void
    {
        $bus = new MessageBus([
            new Waybill\DecodeMiddleware($this->names, $this->json),
            new Waybill\InboxMiddleware($this->db, 'bank'),
            new HandleMessageMiddleware(new HandlersLocator([AccountCredited::class => [$this->booking(...)]])),
        ]);
        $events = new EventDispatcher();
        $retry = new Services(['broker' => new MultiplierRetryStrategy(3, 100), 'failed' => new MultiplierRetryStrategy(0)]);
        $events->addSubscriber(new SendFailedMessageForRetryListener(new Services($transports), $retry));
        $events->addSubscriber(new SendFailedMessageToFailureTransportListener(new Services(['broker' => $this->failed()])));
        $events->addListener(WorkerRunningEvent::class, $afterEach);
        $worker = new Worker($transports, $bus, $events);
        pcntl_async_signals(true);
        pcntl_signal(\SIGTERM, static fn () => $worker->stop());
        $worker->run(['sleep' => 10_000]);
    }

    /** The queue exists: `waybill schema up --transports` or an operator has declared it. */
    private function broker(string $queue): TransportInterface
    {
        return (new AmqpTransportFactory())->createTransport(getenv('BROKER_DSN'), [
            'auto_setup' => false, 'confirm_timeout' => 5, 'exchange' => ['name' => '', 'default_publish_routing_key' => $queue], 'queues' => [$queue => []],
        ], new Waybill\WaybillSerializer($this->names, $this->json));
    }

    private function failed(): TransportInterface
    {
        $options = DoctrineTransport\Connection::buildConfiguration('doctrine://default?queue_name=failed');

        return new DoctrineTransport\DoctrineTransport(new DoctrineTransport\Connection($options, $this->db), new PhpSerializer());
    }
}

$app = new App();
match ($argv[1] ?? '') {
    'credit' => $app->credit($argv[2], (int) $argv[3]),
    'publish' => $app->publish($argv[2], (int) $argv[3]),
    'book' => $app->book($argv[2]),
    'book-failed' => $app->bookFailed(),
};
