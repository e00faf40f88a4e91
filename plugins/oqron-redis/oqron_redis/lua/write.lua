-- Apply a batch of writes to records and keep their indexes.
--
-- A record is a hash of the top-level fields of the value, each its own JSON text, which
-- is compared, joined and handed on but never re-encoded; see _fields. The field NUL,
-- which no value can have, holds "inserted_at" or "inserted_at:expires_at".
--
-- Most batches have one verb and few writes, and a function costs as much to make as a
-- command to call: what each verb does stands in a file of its own, and only what it
-- needs is made.
--
-- KEYS: one record per write, in order; nothing (a key that never is); then of
--       each namespace: expiry index, namespaces of its kind, and its indexes
-- ARGV: atomic (0, 1); how many fields to return (-1 for all), their names;
--       spare (1: the batch may go on when memory is short); how many writes;
--       how many namespaces, and each as in _spaces;
--       then groups: verb, namespace, count, lists of names, the values that all its
--       writes share, and per write the others. Of a whole record: its expiry, its
--       body, and what stands apart
-- Answer: now, then per write 1 (applied, as sent), 2 (applied, no record), 0 (not
--       applied, no record), its meta (applied, no fields asked for), or {applied,
--       meta, fields}; for an atomic batch that does not hold: -1 and the position of
--       the offender

-- needs: _clock
-- needs: _fields
local now_text = string.format('%.0f', now)
local atomic, wanted = ARGV[1] == '1', tonumber(ARGV[2])
local returning = {META}
for i = 1, wanted do returning[i + 1] = ARGV[i + 2] end
-- needs: _records
local position = 3 + math.max(wanted, 0)
local writes = tonumber(ARGV[position + 1])
if ARGV[position] == '1' then
  -- A write that frees memory comes first: who finishes work must be able to.
  call('DEL', KEYS[writes + 1])
end
position = position + 2
local place = writes + 2
-- needs: _spaces

-- What an atomic batch puts back where it does not hold.
local saved, order = {}, {}

local function save(key)
  if not saved[key] then
    saved[key] = call('HGETALL', key)
    order[#order + 1] = key
  end
end

-- --- the groups ----------------------------------------------------------------

local answer, failed = {now_text}, nil
local records, values = KEYS, ARGV
local last = 0
while last < writes do
  local verb, space = ARGV[position + 1], namespaces[tonumber(ARGV[position + 2])]
  local first = last + 1
  last = last + tonumber(ARGV[position + 3])
  position = position + 3

  -- needs: _group
  if verb == 'U' then
    -- needs: _patch
  elseif verb == 'D' then
    -- needs: _delete
  else
    -- needs: _whole
  end
  if failed then
    for i = 1, #order do
      local key, fields = order[i], saved[order[i]]
      call('DEL', key)
      for f = 1, #fields, 4000 do
        call('HSET', key, unpack(fields, f, math.min(f + 3999, #fields)))
      end
    end
    return {'-1', failed - 1}
  end
end

-- needs: _indexed
return answer
