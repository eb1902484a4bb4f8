<?php

declare(strict_types=1);

namespace Waybill\Messenger;

use Doctrine\DBAL\Connection;
use Doctrine\DBAL\ParameterType;
use Symfony\Component\Messenger\Envelope;
use Symfony\Component\Messenger\Exception\TransportException;
use Symfony\Component\Messenger\Stamp\DelayStamp;
use Symfony\Component\Messenger\Transport\TransportInterface;
use Symfony\Component\Serializer\SerializerInterface as Serializer;

/**
 * Messages become rows of the outbox in the transaction that is open on $connection, and `waybill relay`
 * sends them after its commit, or after their DelayStamp. Dispatch last: the key's bucket is locked until the transaction ends.
 */
final class OutboxTransport implements TransportInterface
{
    public function __construct(
        private readonly Connection $connection,
        private readonly string $transport,
        private readonly Names $names,
        private readonly Serializer $json,
    ) {
    }

    public function send(Envelope $envelope): Envelope
    {
        if (!$this->connection->isTransactionActive()) {
            throw new TransportException('an outbox takes messages inside a transaction: dispatch in $connection->transactional(...), or with doctrine_transaction');
        }
        $message = $envelope->getMessage();
        $result = $this->connection->executeQuery(Sql::dispatch($this->connection), [
            $this->transport,
            $this->names->ofClass($message::class),
            $message instanceof Keyed ? $message->partitionKey() : '',
            '{}',
            $this->json->serialize($message, 'json'),
            $envelope->last(DelayStamp::class)?->getDelay() ?? 0,
        ], [4 => ParameterType::LARGE_OBJECT]);
        $id = $result->fetchOne();
        $result->free();

        return $envelope->with(new MessageId($id));
    }

    public function get(): iterable
    {
        throw new TransportException('an outbox is read by `waybill relay`');
    }

    public function ack(Envelope $envelope): void
    {
    }

    public function reject(Envelope $envelope): void
    {
    }
}
