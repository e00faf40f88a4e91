-- Delete records that are still as they were looked at, and mend indexes.
-- KEYS: records; then expiry index, namespaces of the kind, and the indexes
-- ARGV: how many records; how many namespaces, which is one, and it as in _spaces;
--       how many guards, their names; then of each record the index members it was
--       found by (count, then index and member), its meta, and the texts of its guards
--       ('' for absent)
-- Answer: how many were deleted

-- needs: _fields
-- needs: _index
local records = tonumber(ARGV[1])
local position, place = 2, records + 1
-- needs: _spaces
local space = namespaces[1]
local fields, first = {META, unpack(space.fields)}, #space.fields + 1
local guards = tonumber(ARGV[position + 1])
position = position + 1
for i = 1, guards do fields[first + i] = ARGV[position + i] end
position = position + guards

local deleted = 0
for r = 1, records do
  local key = KEYS[r]
  local id = string.sub(key, space.prefix + 1)
  local found = complete(key, fields, redis.call('HMGET', key, unpack(fields)))
  local ghosts = tonumber(ARGV[position + 1])
  local at = position + 1
  position = at + 2 * ghosts + 1
  local meta = ARGV[position]
  local same = (found[1] or '') == meta
  for i = 1, guards do
    same = same and (found[first + i] or '') == ARGV[position + i]
  end
  position = position + guards
  if same then
    if meta == '' then
      -- A ghost: the index knows what is not there.
      for g = 1, ghosts do
        local d = tonumber(ARGV[at + 2 * g - 1])
        redis.call('ZREM', d == 0 and space.expiry or space.defs[d][1], ARGV[at + 2 * g])
      end
    else
      redis.call('DEL', key)
      local texts = {unpack(found, 2, first)}
      for d = 1, #space.defs do
        local def = space.defs[d]
        redis.call('ZREM', def[1], member_of(def, id, texts))
      end
      deleted = deleted + 1
    end
    redis.call('ZREM', space.expiry, id)
  end
end
if redis.call('EXISTS', space.defs[1][1]) == 0 then
  redis.call('ZREM', space.registry, space.name)
end
return deleted
