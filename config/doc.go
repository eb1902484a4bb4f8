// Package config reads connection strings (DSNs) and the file waybill.yaml.
//
// [ParseDSN] turns a connection string into a [DSN] with valid scheme and options.
// The package that opens a DSN decides which schemes it supports. [Load] and [Parse]
// turn a file, the environment and the defaults into a valid [Config].
//
// Two rules hold everywhere. Mistakes are errors: an unknown name, a wrong value or a
// setting that this version cannot honour is an [*Error] with a hint. And no password
// is ever printed: not by a DSN, a Config, or an error about either.
package config
