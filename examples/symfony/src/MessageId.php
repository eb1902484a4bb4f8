<?php

declare(strict_types=1);

namespace Waybill\Messenger;

use Symfony\Component\Messenger\Stamp\StampInterface;

/** The id of a message: made once, at dispatch, and the same on every delivery, retry and replay. */
final class MessageId implements StampInterface
{
    public function __construct(public readonly string $id)
    {
    }

    /** A UUIDv7 of RFC 9562: 48 bits of milliseconds, version, random bits. */
    public static function new(): self
    {
        $hex = sprintf('%012x7%s%x%s', (int) (microtime(true) * 1000), substr(bin2hex(random_bytes(2)), 1), random_int(8, 11), substr(bin2hex(random_bytes(8)), 1));

        return new self(preg_replace('/^(.{8})(.{4})(.{4})(.{4})(.{12})$/', '$1-$2-$3-$4-$5', $hex));
    }
}
