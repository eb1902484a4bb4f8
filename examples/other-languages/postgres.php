<?php
// DATABASE_DSN='pgsql:host=localhost;dbname=shop' php postgres.php ACCOUNT [TIMES]
declare(strict_types=1);

function credit(PDO $db, string $account): string
{
    $db->beginTransaction();
    try {
        $update = $db->prepare('UPDATE account SET balance = balance + 1 WHERE id = ? RETURNING balance');
        $update->execute([$account]);
        $balance = $update->fetchColumn();
        if ($balance === false) {
            throw new RuntimeException("no account $account");
        }

        // Last, because the lock on the key is held from here to the commit.
        $dispatch = $db->prepare("SELECT waybill_dispatch('account.credited', :key, '{}', :body)");
        $dispatch->bindValue('key', $account);
        // As bytes: in text, PostgreSQL would take the backslashes of JSON for its own.
        $dispatch->bindValue('body', json_encode(['account' => $account, 'balance' => $balance], JSON_THROW_ON_ERROR), PDO::PARAM_LOB);
        $dispatch->execute();
        $id = $dispatch->fetchColumn();

        $db->commit();
        return $id;
    } catch (Throwable $e) {
        if ($db->inTransaction()) {
            $db->rollBack();
        }
        throw $e;
    }
}

[, $account, $times] = $argv + [2 => '1'];
$db = new PDO(getenv('DATABASE_DSN'), options: [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION]);
for ($i = 0; $i < (int) $times; $i++) {
    echo credit($db, $account), "\n";
}
