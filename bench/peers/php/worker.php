<?php

declare(strict_types=1);

// Handles messages until SIGTERM, and then prints how many they were.

require __DIR__.'/bootstrap.php';

use Symfony\Component\Messenger\Handler\HandlersLocator;
use Symfony\Component\Messenger\MessageBus;
use Symfony\Component\Messenger\Middleware\HandleMessageMiddleware;
use Symfony\Component\Messenger\Worker;

$handled = 0;
$handler = static function (OrderPlaced $message) use (&$handled): void {
    ++$handled;
};
$bus = new MessageBus([new HandleMessageMiddleware(new HandlersLocator([OrderPlaced::class => [$handler]]))]);
$worker = new Worker(['doctrine' => transport()], $bus);
pcntl_async_signals(true);
pcntl_signal(\SIGTERM, static fn () => $worker->stop());
ready();
$worker->run(['sleep' => 1000]); // microseconds; its default of a second would be waited for at each end of the queue
echo $handled, "\n";
