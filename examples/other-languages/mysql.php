<?php
// DATABASE_DSN='mysql:host=localhost;dbname=shop;user=shop;charset=utf8mb4' php mysql.php ACCOUNT [TIMES]
declare(strict_types=1);

function credit(PDO $db, string $account): string
{
    $db->beginTransaction();
    try {
        $db->prepare('UPDATE account SET balance = balance + 1 WHERE id = ?')->execute([$account]);
        $select = $db->prepare('SELECT balance FROM account WHERE id = ?');
        $select->execute([$account]);
        $balance = $select->fetchColumn();
        if ($balance === false) {
            throw new RuntimeException("no account $account");
        }

        // Last, because the lock on the key is held from here to the commit.
        $dispatch = $db->prepare("CALL waybill_dispatch('account.credited', ?, '{}', ?)");
        $dispatch->execute([$account, json_encode(['account' => $account, 'balance' => $balance], JSON_THROW_ON_ERROR)]);
        $id = $dispatch->fetchColumn();
        $dispatch->closeCursor(); // after the row comes the status of the CALL

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
$db = new PDO(getenv('DATABASE_DSN'), options: [
    PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION,
    PDO::ATTR_EMULATE_PREPARES => false,
]);
for ($i = 0; $i < (int) $times; $i++) {
    echo credit($db, $account), "\n";
}
