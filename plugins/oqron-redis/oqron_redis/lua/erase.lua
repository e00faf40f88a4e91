-- Delete records that are still as they were looked at, and mend indexes.
-- KEYS: records; then expiry index, namespaces of the kind, and the indexes
-- ARGV: how many records; length of what stands before the id in a record key;
--       namespace; how many indexes, and of each the field that must be equal and
--       the field of the time (or ''); how many guards, their names; then of each
--       record the index members it was found by (count, then index and member),
--       its meta, and the texts of its guards ('' for absent)
-- Answer: how many were deleted

-- needs: _index
-- needs: _fields
local position = 0
local function take()
  position = position + 1
  return ARGV[position]
end

local records = tonumber(take())
local prefix, namespace = tonumber(take()), take()
local defs, fields = {}, {META}
for d = 1, tonumber(take()) do
  local def = {key = KEYS[records + 2 + d]}
  for _, part in ipairs({'eq', 'time'}) do
    local field = take()
    if field ~= '' then
      fields[#fields + 1] = field
      def[part] = #fields
    end
  end
  defs[d] = def
end
local guards = {}
for i = 1, tonumber(take()) do
  guards[i] = take()
  fields[#fields + 1] = guards[i]
end

local expiry, registry = KEYS[records + 1], KEYS[records + 2]
local deleted = 0
for r = 1, records do
  local key = KEYS[r]
  local id = string.sub(key, prefix + 1)
  local found = complete(key, fields, redis.call('HMGET', key, unpack(fields)))
  local ghosts = tonumber(take())
  local at = position
  position = position + 2 * ghosts
  local meta = take()
  local same = (found[1] or '') == meta
  for i = 1, #guards do
    local text = take()
    same = same and (found[#fields - #guards + i] or '') == text
  end
  if same then
    if meta == '' then
      -- A ghost: the index knows what is not there.
      for g = 1, ghosts do
        local d = tonumber(ARGV[at + 2 * g - 1])
        redis.call('ZREM', d == 0 and expiry or defs[d].key, ARGV[at + 2 * g])
      end
    else
      redis.call('DEL', key)
      for d = 1, #defs do
        local def, member = defs[d], id
        if def.time then member = time_part(found[def.time]) .. META .. member end
        if def.eq then member = equal_part(found[def.eq]) .. META .. member end
        redis.call('ZREM', def.key, member)
      end
      deleted = deleted + 1
    end
    redis.call('ZREM', expiry, id)
  end
end
if redis.call('EXISTS', defs[1].key) == 0 then
  redis.call('ZREM', registry, namespace)
end
return deleted
