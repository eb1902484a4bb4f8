<?php

declare(strict_types=1);

namespace Waybill\Messenger;

use Doctrine\DBAL\Connection;
use Symfony\Component\Messenger\Transport\Serialization\SerializerInterface;
use Symfony\Component\Messenger\Transport\TransportFactoryInterface;
use Symfony\Component\Messenger\Transport\TransportInterface;
use Symfony\Component\Serializer\SerializerInterface as Serializer;

/** Opens waybill://TRANSPORT: the outbox of that transport in the application's database. */
final class OutboxTransportFactory implements TransportFactoryInterface
{
    public function __construct(private readonly Connection $connection, private readonly Names $names, private readonly Serializer $json)
    {
    }

    public function createTransport(string $dsn, array $options, SerializerInterface $serializer): TransportInterface
    {
        return new OutboxTransport($this->connection, substr($dsn, \strlen('waybill://')), $this->names, $this->json);
    }

    public function supports(string $dsn, array $options): bool
    {
        return str_starts_with($dsn, 'waybill://');
    }
}
