<?php

declare(strict_types=1);

namespace Waybill\Messenger;

use Symfony\Component\Messenger\Bridge\Amqp\Transport\AmqpReceivedStamp;
use Symfony\Component\Messenger\Envelope;
use Symfony\Component\Messenger\Exception\HandlerFailedException;
use Symfony\Component\Messenger\Exception\UnrecoverableMessageHandlingException;
use Symfony\Component\Messenger\Middleware\MiddlewareInterface;
use Symfony\Component\Messenger\Middleware\StackInterface;
use Symfony\Component\Serializer\SerializerInterface as Serializer;

/**
 * Turns received messages into objects with a MessageId.
 *
 * What cannot be decoded goes to the failure transport as it came, with its name and id, and not to the
 * retries: it can be handled from there when the class is known.
 */
final class DecodeMiddleware implements MiddlewareInterface
{
    public function __construct(private readonly Names $names, private readonly Serializer $json)
    {
    }

    public function handle(Envelope $envelope, StackInterface $stack): Envelope
    {
        $raw = $envelope->getMessage();
        if ($raw instanceof Undecoded) {
            $received = $envelope->last(AmqpReceivedStamp::class)?->getAmqpEnvelope();
            $raw = new Undecoded($raw->body, $raw->headers, $raw->name ?: (string) $received?->getType(), $raw->id ?: (string) $received?->getMessageId());
            try {
                if ('' === $raw->id) {
                    throw new \DomainException('the message has no id');
                }
                $message = $this->json->deserialize($raw->body, $this->names->class($raw->name), 'json');
            } catch (\Throwable $e) {
                $failed = new UnrecoverableMessageHandlingException("message {$raw->name} {$raw->id}: {$e->getMessage()}", 0, $e);
                throw new HandlerFailedException(self::withMessage($envelope, $raw), [$failed]);
            }
            $envelope = self::withMessage($envelope, $message)->with(new MessageId($raw->id));
        }

        return $stack->next()->handle($envelope, $stack);
    }

    private static function withMessage(Envelope $envelope, object $message): Envelope
    {
        return new Envelope($message, array_merge(...array_values($envelope->all())));
    }
}
