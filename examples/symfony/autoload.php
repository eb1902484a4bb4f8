<?php

// Composer's autoloader if $AUTOLOAD names it, or the packages of Debian.
declare(strict_types=1);

error_reporting(\E_ALL & ~\E_DEPRECATED & ~\E_USER_DEPRECATED);
ini_set('display_errors', 'stderr');

foreach (getenv('AUTOLOAD') ? [getenv('AUTOLOAD')] : [
    '/usr/share/php/Psr/Container/autoload.php',
    '/usr/share/php/Symfony/Component/Serializer/autoload.php',
    '/usr/share/php/Symfony/Component/PropertyAccess/autoload.php',
    '/usr/share/php/Symfony/Component/EventDispatcher/autoload.php',
    '/usr/share/php/Symfony/Component/Messenger/autoload.php',
    '/usr/share/php/Doctrine/DBAL/autoload.php',
] as $file) {
    require_once $file;
}
spl_autoload_register(static function (string $class): void {
    if (str_starts_with($class, 'Waybill\\Messenger\\')) {
        require __DIR__.'/src/'.substr($class, \strlen('Waybill\\Messenger\\')).'.php';
    }
});
