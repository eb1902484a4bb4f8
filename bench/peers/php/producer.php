<?php

declare(strict_types=1);

// Sends the messages FIRST, FIRST + STEP, ... below N, one insert each: producer.php FIRST STEP N KEYS SIZE

require __DIR__.'/bootstrap.php';

[, $first, $step, $n, $keys, $size] = array_map('intval', $argv);
$transport = transport();
ready();
for ($i = $first; $i < $n; $i += $step) {
    $key = 'key-'.($i % $keys);
    $bare = strlen(json_encode(['n' => $i, 'key' => $key, 'pad' => '']));
    $transport->send(new \Symfony\Component\Messenger\Envelope(new OrderPlaced($i, $key, str_repeat('x', $size - $bare))));
}
