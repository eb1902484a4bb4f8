<?php

declare(strict_types=1);

namespace Waybill\Messenger;

/** A message with a partition key: those with equal keys keep their order. '' means none. */
interface Keyed
{
    public function partitionKey(): string;
}
