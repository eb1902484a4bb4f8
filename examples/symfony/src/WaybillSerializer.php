<?php

declare(strict_types=1);

namespace Waybill\Messenger;

use Symfony\Component\Messenger\Envelope;
use Symfony\Component\Messenger\Stamp\RedeliveryStamp;
use Symfony\Component\Messenger\Transport\Serialization\SerializerInterface;
use Symfony\Component\Serializer\SerializerInterface as Serializer;

/**
 * The wire format of waybill (docs/wire.md) on an AMQP transport of Messenger.
 *
 * decode leaves the work to DecodeMiddleware: id and name are AMQP properties, which a serializer is not
 * given, and a message that it refuses is dropped by the transport.
 */
final class WaybillSerializer implements SerializerInterface
{
    public function __construct(private readonly Names $names, private readonly Serializer $json)
    {
    }

    public function encode(Envelope $envelope): array
    {
        $message = $envelope->getMessage();
        $headers = ['Content-Type' => 'application/json'];
        if ($message instanceof Undecoded) {
            $body = $message->body;
            $headers = $message->headers;
            $name = $message->name;
            $id = $message->id;
        } else {
            $body = $this->json->serialize($message, 'json');
            $name = $this->names->ofClass($message::class);
            $id = ($envelope->last(MessageId::class) ?? MessageId::new())->id;
        }
        $headers = array_filter(['type' => $name, 'x-message-id' => $id]) + $headers;
        if ($message instanceof Keyed && '' !== $message->partitionKey()) {
            $headers['x-partition-key'] = $message->partitionKey();
        }
        if ($retries = RedeliveryStamp::getRetryCountFromEnvelope($envelope)) {
            $headers['x-attempt'] = (string) ($retries + 1);
        }

        return ['body' => $body, 'headers' => $headers];
    }

    public function decode(array $encodedEnvelope): Envelope
    {
        $headers = $encodedEnvelope['headers'] ?? [];
        $envelope = new Envelope(new Undecoded($encodedEnvelope['body'], $headers, $headers['type'] ?? '', $headers['x-message-id'] ?? ''));
        $retries = (int) ($headers['x-attempt'] ?? 1) - 1;

        return $retries > 0 ? $envelope->with(new RedeliveryStamp($retries)) : $envelope;
    }
}
