<?php

declare(strict_types=1);

namespace Waybill\Messenger;

/** A received message as it came. DecodeMiddleware turns it into an object; one that cannot be decoded stays this. */
final class Undecoded
{
    /** @param array<string, mixed> $headers */
    public function __construct(
        public readonly string $body,
        public readonly array $headers,
        public readonly string $name = '',
        public readonly string $id = '',
    ) {
    }
}
