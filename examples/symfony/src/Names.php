<?php

declare(strict_types=1);

namespace Waybill\Messenger;

/** The names under which classes of messages travel, as order.placed. */
final class Names
{
    /** @param array<string, class-string> $classes by name */
    public function __construct(private readonly array $classes)
    {
    }

    public function ofClass(string $class): string
    {
        return array_search($class, $this->classes, true)
            ?: throw new \LogicException("$class has no name: add it to the names of waybill");
    }

    public function class(string $name): string
    {
        return $this->classes[$name] ?? throw new \DomainException("unknown message name \"$name\"");
    }
}
