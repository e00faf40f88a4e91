SELECT m.key, m.value::text FROM ${meta} AS m
