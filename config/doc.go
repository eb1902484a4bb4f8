// Package config reads what an operator writes: connection strings (DSNs) and
// the file waybill.yaml.
//
// [ParseDSN] turns a connection string into a [DSN] whose scheme and options
// are known to be valid. Whether this version can open the scheme is for the
// package that opens it to say. [Load] and [Parse] turn a file, the
// environment and the defaults into a valid [Config].
//
// Two rules hold everywhere. Nothing is tolerated in silence: an unknown name,
// a wrong value or a setting that this version cannot honour is an [*Error]
// that says what to write instead. And no password is ever printed: not by a
// DSN, a Config, or an error about either.
package config
