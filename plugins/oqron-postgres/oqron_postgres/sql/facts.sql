SELECT m.key, m.value::text FROM ${meta} AS m
-- By the key: a walk over the table looks dear where the session should not do any.
ORDER BY m.key
