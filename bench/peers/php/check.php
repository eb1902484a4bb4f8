<?php

declare(strict_types=1);

// Prints the version of Symfony Messenger. With the argument "setup" it makes the table.

require __DIR__.'/bootstrap.php';

if ('setup' === ($argv[1] ?? '')) {
    transport()->setup();
}
$version = class_exists(\Composer\InstalledVersions::class) && \Composer\InstalledVersions::isInstalled('symfony/messenger')
    ? \Composer\InstalledVersions::getPrettyVersion('symfony/messenger')
    : trim((string) shell_exec("dpkg-query -W -f '\${Version}' php-symfony-messenger 2>/dev/null"));
echo $version, ', PHP ', \PHP_VERSION, "\n";
