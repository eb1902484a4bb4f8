package waymysql

// KnowNoKeys has claims look up what is blocked row by row, as they do where it is
// very much.
func (db *DB) KnowNoKeys() { db.knownKeys = 0 }
