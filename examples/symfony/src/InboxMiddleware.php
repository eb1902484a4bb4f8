<?php

declare(strict_types=1);

namespace Waybill\Messenger;

use Doctrine\DBAL\Connection;
use Symfony\Component\Messenger\Envelope;
use Symfony\Component\Messenger\Middleware\MiddlewareInterface;
use Symfony\Component\Messenger\Middleware\StackInterface;
use Symfony\Component\Messenger\Stamp\ReceivedStamp;

/**
 * Handlers of a received message run in one transaction with a row of waybill_inbox: their writes through
 * $connection happen once for each message id, however often it comes.
 */
final class InboxMiddleware implements MiddlewareInterface
{
    /** @param string $handler the name of this application in waybill_inbox, which does not change */
    public function __construct(private readonly Connection $connection, private readonly string $handler)
    {
    }

    public function handle(Envelope $envelope, StackInterface $stack): Envelope
    {
        $id = $envelope->last(MessageId::class)?->id;
        if (null === $id || null === $envelope->last(ReceivedStamp::class)) {
            return $stack->next()->handle($envelope, $stack);
        }

        return $this->connection->transactional(function () use ($id, $envelope, $stack): Envelope {
            $isNew = $this->connection->executeStatement(Sql::inbox($this->connection), [$this->handler, $id, $id]);

            return $isNew ? $stack->next()->handle($envelope, $stack) : $envelope;
        });
    }
}
