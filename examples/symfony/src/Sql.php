<?php

declare(strict_types=1);

namespace Waybill\Messenger;

use Doctrine\DBAL\Connection;
use Doctrine\DBAL\Platforms\PostgreSQLPlatform;

/** The statements of docs/schema.md, for PostgreSQL or for MySQL and MariaDB. */
final class Sql
{
    /** Parameters: transport, name, key, headers, body, delay in milliseconds. The result is one row with the id. */
    public static function dispatch(Connection $on): string
    {
        return self::isPostgres($on)
            ? 'SELECT waybill_dispatch(transport => ?, name => ?, key => ?, headers => ?, body => ?, delay => ? * interval \'1 ms\')'
            : 'CALL waybill_dispatch_later(?, ?, ?, ?, ?, ?)';
    }

    /** Parameters: handler, id, id. It inserts a row, or none where the message has been handled. */
    public static function inbox(Connection $on): string
    {
        return self::isPostgres($on)
            ? 'INSERT INTO waybill_inbox (handler, dedup_key, message_id) VALUES (?, lower(?), ?) ON CONFLICT (handler, dedup_key) DO NOTHING'
            : "INSERT IGNORE INTO waybill_inbox (handler, dedup_key, message_id) VALUES (?, LOWER(?), UNHEX(REPLACE(?, '-', '')))";
    }

    private static function isPostgres(Connection $on): bool
    {
        return $on->getDatabasePlatform() instanceof PostgreSQLPlatform;
    }
}
