<?php

declare(strict_types=1);

/*
 * Loads Symfony Messenger and its Doctrine transport: by the Composer autoloader named by
 * $WAYBILL_PHP_AUTOLOAD, or else from the Debian packages php-symfony-doctrine-messenger
 * and php-doctrine-dbal. Exit code 2: something is missing.
 */

error_reporting(\E_ALL & ~\E_DEPRECATED & ~\E_USER_DEPRECATED);
ini_set('display_errors', 'stderr');

$composer = getenv('WAYBILL_PHP_AUTOLOAD') ?: '';
foreach ('' !== $composer ? [$composer] : [
    '/usr/share/php/Psr/Log/autoload.php',
    '/usr/share/php/Symfony/Component/Messenger/autoload.php',
    '/usr/share/php/Doctrine/DBAL/autoload.php',
] as $file) {
    if (is_file($file)) {
        require_once $file;
    }
}
foreach ([
    \Symfony\Component\Messenger\Worker::class => 'Symfony Messenger (php-symfony-messenger)',
    \Symfony\Component\Messenger\Bridge\Doctrine\Transport\DoctrineTransport::class => 'its Doctrine transport (php-symfony-doctrine-messenger)',
    \Doctrine\DBAL\DriverManager::class => 'Doctrine DBAL (php-doctrine-dbal)',
] as $class => $name) {
    if (!class_exists($class)) {
        fwrite(\STDERR, "$name is missing\n");
        exit(2);
    }
}
foreach (['pdo_pgsql', 'pcntl'] as $extension) {
    if (!extension_loaded($extension)) {
        fwrite(\STDERR, "the PHP extension $extension is missing\n");
        exit(2);
    }
}

/** The message of all contestants. */
final class OrderPlaced
{
    public function __construct(public int $n, public string $key, public string $pad)
    {
    }
}

/** The transport doctrine:// with its default options, in the schema $PEERS_SCHEMA of $PEERS_DATABASE. */
function transport(): \Symfony\Component\Messenger\Bridge\Doctrine\Transport\DoctrineTransport
{
    $url = parse_url((string) getenv('PEERS_DATABASE'));
    $dbal = \Doctrine\DBAL\DriverManager::getConnection([
        'driver' => 'pdo_pgsql', 'host' => $url['host'] ?? 'localhost', 'port' => $url['port'] ?? 5432,
        'user' => urldecode($url['user'] ?? ''), 'password' => urldecode($url['pass'] ?? ''), 'dbname' => ltrim($url['path'] ?? '', '/'),
    ]);
    $dbal->executeStatement('SET search_path TO '.getenv('PEERS_SCHEMA'));
    $options = \Symfony\Component\Messenger\Bridge\Doctrine\Transport\PostgreSqlConnection::buildConfiguration('doctrine://default');

    return new \Symfony\Component\Messenger\Bridge\Doctrine\Transport\DoctrineTransport(
        new \Symfony\Component\Messenger\Bridge\Doctrine\Transport\PostgreSqlConnection($options, $dbal),
        new \Symfony\Component\Messenger\Transport\Serialization\PhpSerializer(),
    );
}

/** Says that the process is ready, and waits for the word to begin. */
function ready(): void
{
    echo "ready\n";
    if ("go\n" !== fgets(\STDIN)) {
        exit(1);
    }
}
