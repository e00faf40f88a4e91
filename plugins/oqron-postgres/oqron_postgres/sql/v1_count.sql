SELECT count(*) FROM ${kv}
